"""Compare the time of `vaswani translate`, from text file to text file, with the time of CTranslate2 and MarianMTModel.

    python scripts/benchmark_files.py --model model_cards/everyday_en_de --source test.en --target test.de

Each system runs in fresh processes, as users start it, and uses two cores: with two threads, or with two processes or
workers of one thread each. CTranslate2 reads what `vaswani export` writes, and MarianMTModel reads what
`vaswani convert --to marian` writes. All systems search with beam 4. The systems take turns. In each turn, a system
translates the file, and also a file with the first line alone. The time for the first line counts as the start. The
time for the file, minus the start, counts as translation.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import sacrebleu
from benchmark_common import Ratio, describe_machine, format_rows, report

from vaswani_transformer import cli

OURS = "-m vaswani_transformer translate --model {model} --input {input} --output {output} --dtype"
TORCHRUN = "-m torch.distributed.run --nproc_per_node 2"
CTRANSLATE2 = "{folder}/ctranslate2_files.py {input} {output}"
# For each system: the arguments of Python, and the number of threads of each of its processes or workers.
SYSTEMS = {
    "vaswani_transformer, float32": (f"{OURS} float32", 2),
    "two processes, float32": (f"{TORCHRUN} {OURS} float32", 1),
    "vaswani_transformer, bfloat16": (f"{OURS} bfloat16", 2),
    "two processes, bfloat16": (f"{TORCHRUN} {OURS} bfloat16", 1),
    "CTranslate2, float32": (f"{CTRANSLATE2} {{folder}}/float32 1", 2),
    "two workers of CTranslate2, float32": (f"{CTRANSLATE2} {{folder}}/float32 2", 1),
    "CTranslate2, int8": (f"{CTRANSLATE2} {{folder}}/int8 1", 2),
    "two workers of CTranslate2, int8": (f"{CTRANSLATE2} {{folder}}/int8 2", 1),
    "MarianMTModel, float32": ("{folder}/marian.py {input} {output} {folder}/marian", 2),
}
REFERENCE = "CTranslate2, float32"
COLUMNS = {
    "": "{name}",
    "start, s": "{start:.1f}",
    "translation, s": "{translation:.1f}",
    "all, s": "{whole:.1f}",
    f"times as fast as '{REFERENCE}', without the start": "{ratio}",
    "BLEU": "{bleu:.2f}",
}
# Programs that translate a file with CTranslate2 or MarianMTModel, as users write such programs.
WITH_CTRANSLATE2 = """
import os, sys
import ctranslate2
from tokenizers import Tokenizer

source, output, folder, workers = sys.argv[1:]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
threads = int(os.environ["OMP_NUM_THREADS"])
translator = ctranslate2.Translator(folder, inter_threads=int(workers), intra_threads=threads)
lines = open(source, encoding="utf-8").read().splitlines()
tokens = [encoding.tokens for encoding in tokenizer.encode_batch(lines)]
options = dict(beam_size=4, length_penalty=0.6, max_batch_size=2000, batch_type="tokens")
found = translator.translate_batch(tokens, **options)
ids = [[tokenizer.token_to_id(token) for token in result.hypotheses[0]] for result in found]
with open(output, "w", encoding="utf-8") as file:
    file.writelines(f"{text.strip()}\\n" for text in tokenizer.decode_batch(ids))
"""
WITH_MARIAN = """
import sys
from transformers import AutoTokenizer, MarianMTModel

source, output, folder = sys.argv[1:]
tokenizer, model = AutoTokenizer.from_pretrained(folder), MarianMTModel.from_pretrained(folder)
lines = open(source, encoding="utf-8").read().splitlines()
order = sorted(range(len(lines)), key=lambda row: -len(lines[row]))
found = {}
for start in range(0, len(order), 64):
    rows = order[start : start + 64]
    inputs = tokenizer([lines[row] for row in rows], padding=True, return_tensors="pt")
    tokens = model.generate(**inputs, num_beams=4, max_new_tokens=inputs.input_ids.shape[1] + 50)
    found.update(zip(rows, tokenizer.batch_decode(tokens, skip_special_tokens=True)))
with open(output, "w", encoding="utf-8") as file:
    file.writelines(f"{found[row]}\\n" for row in range(len(lines)))
"""


def measure(name: str, places: dict[str, Path]) -> float:
    """Return the seconds that the command of the system `name` takes.

    Args:
        places: the paths for {model}, {folder}, {input} and {output} in the command.
    """
    arguments, threads = SYSTEMS[name]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "ACCELERATE_USE_CPU": "true"}
    words = [word.format(**places) for word in arguments.split()]
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=True)
    return time.perf_counter() - started


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, help="text to translate, one sentence per line")
    parser.add_argument("--target", type=Path, required=True, help="translations of --source, for BLEU")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=tuple(SYSTEMS),
        default=list(SYSTEMS),
        help=f"default: all; {REFERENCE} is always measured",
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often to measure; default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    args = parser.parse_args(argv)
    references = args.target.read_text(encoding="utf-8").splitlines()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*args.systems, REFERENCE)}
    bleu = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("float32", "int8"):
            options = ["--model", args.model, "--output", f"{folder}/{kind}", "--quantization", kind]
            cli.main(["export", "--format", "ctranslate2", *options])
        cli.main(["convert", "--to", "marian", "--model", args.model, "--output", f"{folder}/marian"])
        (folder / "ctranslate2_files.py").write_text(WITH_CTRANSLATE2)
        (folder / "marian.py").write_text(WITH_MARIAN)
        (folder / "one").write_text(args.source.read_text(encoding="utf-8").partition("\n")[0], encoding="utf-8")
        places = {"model": args.model, "folder": folder, "output": folder / "out"}
        for _ in range(args.repeats):
            for system, seconds in times.items():
                start = measure(system, places | {"input": folder / "one"})
                seconds.append((start, measure(system, places | {"input": args.source})))
                found = (folder / "out").read_text(encoding="utf-8").splitlines()
                bleu[system] = sacrebleu.corpus_bleu(found, [references]).score
    translation = {system: [whole - start for start, whole in seconds] for system, seconds in times.items()}
    rows = []
    for system, seconds in times.items():
        starts, wholes = map(statistics.median, zip(*seconds, strict=True))
        ratio = Ratio.of(translation[system], translation[REFERENCE])
        medians = {"start": starts, "whole": wholes, "translation": statistics.median(translation[system])}
        rows.append({"name": system, "ratio": ratio, "bleu": bleu[system], **medians})
    description = describe_machine() | {"text": f"{args.source.name}, {len(references):,} lines"}
    report("From text file to text file", description, format_rows(rows, COLUMNS), rows, args.output)


if __name__ == "__main__":
    main()
