"""Compare our beam search with those of transformers' MarianMTModel and CTranslate2: speed and memory, equal weights.

    python scripts/benchmark_decoding.py --quick
    python scripts/benchmark_decoding.py --sizes small base --source test.en
    python scripts/benchmark_decoding.py --model runs/multi30k --source test.en

Our search follows section 6.1: it has the length penalty of Wu et al., ends only when no better translation is
possible, and limits the length of each sentence separately. The system "vaswani_transformer" keeps an engine between
calls of `generate()`, as `vaswani translate` does. The system "raw generate()" keeps no engine. CTranslate2 reads the
folder that `vaswani export` writes. It is left out where it is not installed.

Models of --sizes are untrained. They do not end their sentences, so they are forced to write --forced_length tokens.
All systems should then find the same translations. The column "same as ours" counts the translations of a system that
equal those of the system "vaswani_transformer".

The systems take turns. In a turn, a system translates all batches in the order of the file. Each system runs in a
separate process, so that its memory can be measured. Memory is the peak growth of the resident memory of the process
while the model is loaded and translates for the first time. --quick answers in five minutes on two cores: it translates
few sentences with a small model, in batches of 1 and 16.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from benchmark_common import (
    CLOCKS,
    MARIAN,
    OURS,
    SIZES,
    Ratio,
    add_model_options,
    build_config,
    build_marian,
    describe_machine,
    describe_model,
    format_rows,
    num_trained,
    open_child,
    parse_arguments,
    peak_growth,
    read_pairs,
    report,
    start_parser,
)
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vaswani_transformer import VaswaniForConditionalGeneration, cli, train_tokenizer
from vaswani_transformer.conversion.marian import copy_weights
from vaswani_transformer.loading import load_translator
from vaswani_transformer.memory import tune_memory

Batch = list[list[int]]  # token ids of each sentence, </s> included

QUICK = {"sentences": 16, "batch_sizes": [1, 16], "repeats": 3}
PAUSE = 0.3  # seconds between two turns; the OpenMP threads of a system poll for work up to 0.2 seconds after its turn
CTRANSLATE2, CTRANSLATE2_INT8 = "CTranslate2", "CTranslate2 int8"
PEERS = (MARIAN, CTRANSLATE2, CTRANSLATE2_INT8)
LENGTH_OFFSET = 50
# Our systems, with the `dtype` of the engine that is kept between calls of `generate()`, or None without an engine.
ENGINES = {OURS: "float32", f"{OURS}, raw generate()": None}


def build_parser() -> argparse.ArgumentParser:
    parser = start_parser(__doc__)
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=tuple(SIZES),
        default=[],
        help="measure models of these sizes with random weights; default: small, or none with --model",
    )
    parser.add_argument("--model", type=Path, help="run folder or model folder of a trained model to measure")
    add_model_options(parser)
    parser.add_argument("--sentences", type=int, default=64, help="sentences to translate; default: %(default)s")
    parser.add_argument(
        "--batch_sizes", type=int, nargs="+", default=[1, 16, 64], help="sentences in a batch; default: 1 16 64"
    )
    parser.add_argument("--num_beams", type=int, default=4, help="beams of each sentence; default: %(default)s")
    parser.add_argument("--length_penalty", type=float, default=0.6, help="alpha; default: %(default)s")
    parser.add_argument(
        "--forced_length",
        type=int,
        default=32,
        help="tokens in each translation by the models of --sizes; default: %(default)s",
    )
    return parser


# The systems. `prepare` returns a batch in the form that the system reads, `translate` is the part that is timed, and
# `read` returns the token ids of each translation.


class GenerateSystem:
    """`generate()` of our model or of MarianMTModel.

    Args:
        load: returns the model.
        engine: the `dtype` of the engine to keep between calls, or None for no engine.
        args: the arguments of the program. If `forced_length` is None, translations end with </s>.
    """

    def __init__(self, load: Callable[[], PreTrainedModel], engine: str | None, args: argparse.Namespace):
        torch.set_num_threads(args.threads)
        self.model, self.forced_length = load().eval(), args.forced_length
        self.options = {"num_beams": args.num_beams, "length_penalty": args.length_penalty}
        self.is_ours = isinstance(self.model, VaswaniForConditionalGeneration)
        if self.is_ours:
            self.options |= {"early_stopping": "never", "max_length_offset": LENGTH_OFFSET}
        if engine is not None:
            self.model = self.model.build_engine(dtype=engine)  # this frees the memory of the model

    def prepare(self, batch: Batch) -> dict[str, torch.Tensor]:
        pad_token_id = self.model.config.pad_token_id
        input_ids = pad_sequence(list(map(torch.tensor, batch)), batch_first=True, padding_value=pad_token_id)
        return {"input_ids": input_ids, "attention_mask": (input_ids != pad_token_id).long()}

    def translate(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        limits = {}
        if self.forced_length is not None:
            limits = {"min_new_tokens": self.forced_length, "max_new_tokens": self.forced_length}
        elif not self.is_ours:
            limits = {"max_new_tokens": inputs["input_ids"].shape[1] + LENGTH_OFFSET}
        return self.model.generate(**inputs, **self.options, **limits)

    def read(self, output: torch.Tensor) -> list[list[int]]:
        return [row[row != self.model.config.pad_token_id].tolist() for row in output[:, 1:]]


class CTranslate2System:
    """`translate_batch()` of CTranslate2, with the exported model in `folder`; `args`: see `GenerateSystem`."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        import ctranslate2  # here, because the other systems run without it

        self.args = args
        self.translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=args.threads)
        self.tokens = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}

    def prepare(self, batch: Batch) -> list[list[str]]:
        return [[self.tokens[token_id] for token_id in ids] for ids in batch]

    def translate(self, inputs: list[list[str]]) -> list:
        forced = self.args.forced_length
        return self.translator.translate_batch(
            inputs,
            beam_size=self.args.num_beams,
            length_penalty=self.args.length_penalty,
            return_end_token=True,  # </s> counts as a token, as in the other systems
            max_input_length=0,
            min_decoding_length=forced or 0,
            max_decoding_length=forced or max(map(len, inputs)) + LENGTH_OFFSET,
        )

    def read(self, output: list) -> list[list[int]]:
        return [[self.ids[token] for token in result.hypotheses[0]] for result in output]


def build_systems(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    args: argparse.Namespace,
) -> dict[str, Callable]:
    """Write one model into `folder`, in the format of each system.

    Args:
        args: the arguments of the program, with `forced_length` None for a trained model.

    Returns:
        for each name of a system, a function that builds it. Call each function in a separate process.
    """
    marian = build_marian(model.config)
    copy_weights(model, marian)
    model.save_pretrained(folder / OURS)
    tokenizer.save_pretrained(folder / OURS)
    # The whole module is saved, because a MarianConfig does not hold the epsilon of our layer norms.
    torch.save(marian, folder / MARIAN)
    load = partial(VaswaniForConditionalGeneration.from_pretrained, folder / OURS)
    load_marian = partial(torch.load, folder / MARIAN, weights_only=False)
    systems: dict[str, Callable] = {name: partial(GenerateSystem, load, dtype, args) for name, dtype in ENGINES.items()}
    systems[MARIAN] = partial(GenerateSystem, load_marian, None, args)
    if importlib.util.find_spec("ctranslate2") is not None:
        for name, quantization in ((CTRANSLATE2, "float32"), (CTRANSLATE2_INT8, "int8")):
            paths = ["--model", f"{folder / OURS}", "--output", f"{folder / name}", "--quantization", quantization]
            with contextlib.redirect_stdout(io.StringIO()):
                cli.main(["export", "--format", "ctranslate2", *paths])
            systems[name] = partial(CTranslate2System, folder / name, args)
    return systems


# These functions run in the process of a system.

STARTED: list = []  # the system of this process, and the inputs of its batches


def start(build: Callable, batches: Sequence[Batch]) -> tuple[list[list[int]], float]:
    """Build a system in this process and translate `batches` once, which also warms it up.

    The process gets the memory settings of the command `vaswani`, because they help all systems.

    Returns:
        the token ids of each translation, and the MiB that the model and the search take.
    """
    tune_memory()
    found = []

    def work() -> None:
        system = build()
        inputs = [system.prepare(batch) for batch in batches]
        STARTED[:] = system, inputs
        for batch in inputs:
            found.extend(system.read(system.translate(batch)))

    memory = peak_growth(work)
    return found, memory


def time_pass(clock: str) -> float:
    """Return the seconds that the system of this process takes to translate all batches."""
    system, inputs = STARTED
    started = CLOCKS[clock]()
    for batch in inputs:
        system.translate(batch)
    return CLOCKS[clock]() - started


# The comparison


def compare(systems: dict[str, Callable], batches: list[Batch], args: argparse.Namespace) -> list[dict]:
    """Time all systems on `batches`, in turns. Return a row of the result for each system."""
    names = list(systems)
    seconds = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        calls = {name: stack.enter_context(open_child()) for name in names}
        found = {name: calls[name](start, build, batches) for name, build in systems.items()}
        for repeat in range(args.repeats):
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                time.sleep(PAUSE)
                seconds[name].append(calls[name](time_pass, args.clock))
    rows = []
    for name, (translations, memory) in found.items():
        median = statistics.median(seconds[name])
        rows.append(
            {
                "batch_size": len(batches[0]),
                "system": name,
                "sentences_per_second": len(translations) / median,
                "tokens_per_second": sum(map(len, translations)) / median,
                "ratios": {peer: Ratio.of(seconds[name], seconds[peer]) for peer in PEERS if peer in systems},
                "same_translations": sum(map(list.__eq__, translations, found[OURS][0])),
                "memory_mib": memory,
                "seconds": seconds[name],
            }
        )
    return rows


def format_speeds(rows: Sequence[dict]) -> str:
    columns = {
        "system": "{system}",
        "model": "{model}",
        "batch": "{batch_size}",
        "sentences/s": "{sentences_per_second:.1f}",
        "tokens/s": "{tokens_per_second:,.0f}",
        **{f"/ {peer}": f"{{ratios[{peer}]}}" for peer in rows[0]["ratios"]},
        "same as ours": "{same_translations}",
        "memory, MiB": "{memory_mib:,.0f}",
    }
    return format_rows(rows, columns)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_arguments(build_parser(), argv, **QUICK)
    args.threads = torch.get_num_threads()
    # The vocabulary is learnt from all lines of --source, or from 1,000 pairs of the phrasebook.
    pairs = read_pairs(args.source, args.source, count=1_000 if args.source is None else 10**9)
    text = [source for source, _ in pairs]
    models = {} if args.model is None else {args.model.name: load_translator(args.model)}
    for size in args.sizes or ["small"] * (args.model is None):
        torch.manual_seed(0)
        config = build_config(size, vocab_size=args.vocab_size)
        tokenizer = train_tokenizer(text, vocab_size=config.vocab_size)
        models[size] = VaswaniForConditionalGeneration(config), tokenizer
    description = describe_machine()
    rows = []
    for name, (model, tokenizer) in models.items():
        is_random = name in SIZES
        system_args = argparse.Namespace(**vars(args) | ({} if is_random else {"forced_length": None}))
        ids = tokenizer(text[: args.sentences], verbose=False).input_ids
        with tempfile.TemporaryDirectory() as folder:
            systems = build_systems(model.cpu(), tokenizer, Path(folder), system_args)
            for batch_size in args.batch_sizes:
                batches = [ids[first : first + batch_size] for first in range(0, len(ids), batch_size)]
                rows += [{"model": name, **row} for row in compare(systems, batches, args)]
        weights = f"random, forced to {args.forced_length} tokens" if is_random else "trained"
        description[name] = f"{describe_model(model.config)}; {weights}; {num_trained(model):,} parameters"
    description |= {
        "search": f"beam {args.num_beams}, alpha {args.length_penalty}, at most source + {LENGTH_OFFSET} tokens",
        "sentences": f"{args.sentences} of {args.source.name if args.source else 'the phrasebook'}",
        "measured": f"{args.repeats} repeats, the systems took turns, {args.clock} time; the column '/ SYSTEM' is "
        f"the speed of the system of a row divided by that of SYSTEM, median (min to max)",
    }
    report(f"Decoding, {', '.join(models)}", description, format_speeds(rows), rows, args.output)


if __name__ == "__main__":
    main()
