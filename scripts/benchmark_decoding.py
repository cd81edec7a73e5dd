"""Speed and memory of beam search, beside transformers' MarianMTModel and CTranslate2 with the same weights.

    python scripts/benchmark_decoding.py --quick
    python scripts/benchmark_decoding.py --sizes small,base --source test.en
    python scripts/benchmark_decoding.py --model runs/multi30k --source test.en
    python scripts/benchmark_decoding.py --growth --sizes small --source test.en --batch_sizes 16

Ours is the search of section 6.1: the penalty of Wu et al., its exact end, a limit for each sentence. It keeps an
engine whose model has released its matrices, as `vaswani translate` does; raw generate() keeps nothing between calls.
With --model it is also timed with the penalty and the end of each peer; translations then must be that peer's. An
untrained model does not end its sentences, so those of --sizes are forced to --forced_length tokens, where all systems
must find the same translations. CTranslate2 reads what `vaswani export` writes, and is left out where it is not
installed.

The systems take turns, a pass over all batches each, in the order of the file. Memory is how far the resident memory
of a fresh process grows at its peak: while the model is loaded, and then while it translates for the first time.
--growth shows the same for 10 times as many sentences, and for sources of 10 sentences each. --quick answers in five
minutes on two cores: few sentences of a small model, in batches of 1 and 16.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import torch
from benchmark_common import (
    SIZES,
    Ratio,
    add_model_options,
    add_report_options,
    add_timing_options,
    build_config,
    describe_machine,
    describe_model,
    format_rows,
    format_table,
    names_among,
    num_trained,
    open_child,
    parse_quickly,
    read_pairs,
    report,
)
from decoding_systems import (
    LENGTH_OFFSET,
    PEERS,
    Batch,
    Models,
    Search,
    System,
    find_reference,
    start,
    time_pass,
)
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.lines import read_lines
from vaswani_transformer.data.tokenization import train_tokenizer
from vaswani_transformer.loading import load_translator

GROWTH = 10
QUICK = {"sentences": 16, "batch_sizes": [1, 16], "repeats": 3}
PAUSE = 0.3  # seconds between two turns: OpenMP's threads look for more work for up to 0.2
AS_IT_IS, MORE, LONGER = "as it is", f"{GROWTH} times as many", f"{GROWTH} times as long"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = f"random weights of these sizes, any of {','.join(SIZES)}; default: small, or none with --model"
    parser.add_argument("--sizes", type=names_among(SIZES, "size"), default=[], help=text)
    parser.add_argument("--model", type=Path, help="run or model folder of a trained model")
    add_model_options(parser)
    add_timing_options(parser)
    add_report_options(parser)
    parser.add_argument("--sentences", type=int, default=64, help="sentences to translate; default: %(default)s")
    parser.add_argument(
        "--batch_sizes", type=int, nargs="+", default=[1, 16, 64], help="in sentences; default: 1 16 64"
    )
    parser.add_argument("--num_beams", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--length_penalty", type=float, default=0.6, help="alpha; default: %(default)s")
    parser.add_argument("--forced_length", type=int, default=32, help="tokens, of random weights; default: %(default)s")
    parser.add_argument("--growth", action="store_true", help="what grows with the work")
    return parser


def read_sentences(source: Path | None) -> list[str]:
    """Return all lines of a file, which are enough to learn a vocabulary, or 1,000 sentences of the phrasebook."""
    if source is None:
        return [text for text, _ in read_pairs(None, None, count=1_000)]
    return list(read_lines(source))


def build_random(
    size: str, sentences: list[str], *, vocab_size: int | None
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
    torch.manual_seed(0)
    config = build_config(size, vocab_size=vocab_size)
    return VaswaniForConditionalGeneration(config).eval(), train_tokenizer(sentences, vocab_size=config.vocab_size)


def build_workloads(sentences: list[str], args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the sentences of each workload by its name."""
    few = sentences[: args.sentences]
    if not args.growth:
        return {AS_IT_IS: few}
    many = list(islice(sentences, GROWTH * args.sentences))
    if len(many) < GROWTH * args.sentences:
        raise SystemExit(
            f"--growth translates {GROWTH} times --sentences {args.sentences}, and there are {len(many)}: give a "
            f"longer --source or fewer sentences."
        )
    longer = [" ".join(many[start : start + GROWTH]) for start in range(0, len(many), GROWTH)]
    return {AS_IT_IS: few, MORE: many, LONGER: longer}


def compare(
    systems: dict[str, Callable[[], System]], batches: list[Batch], search: Search, args: argparse.Namespace
) -> list[dict]:
    """Time all systems on `batches`, in turns; return a row of the result for each."""
    names = list(systems)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        calls = {name: stack.enter_context(open_child()) for name in names}
        found = {name: calls[name](start, name, build, batches) for name, build in systems.items()}
        for repeat in range(args.repeats):
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                time.sleep(PAUSE)
                seconds[name].append(calls[name](time_pass, name, args.clock))
    rows = []
    for name in names:
        translations, median = found[name].translations, statistics.median(seconds[name])
        reference = find_reference(name, search)
        expected = found[reference].translations if reference in found else [None] * len(translations)
        rows.append(
            {
                "batch_size": len(batches[0]),
                "system": name,
                "sentences_per_second": len(translations) / median,
                "tokens_per_second": sum(map(len, translations)) / median,
                "ratios": {peer: Ratio.of(seconds[name], seconds[peer]) for peer in PEERS if peer in systems},
                "same_translations": sum(map(list.__eq__, translations, expected)) if reference in found else None,
                "same_as": reference,
                "sentences": len(translations),
                "model_memory_mib": found[name].model_memory,
                "search_memory_mib": found[name].search_memory,
                "seconds": seconds[name],
            }
        )
    return rows


def measure(
    name: str,
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    workloads: dict[str, list[str]],
    args: argparse.Namespace,
) -> tuple[str, list[dict]]:
    """Measure a model in all systems; return its description and the rows of its results."""
    forced_length = args.forced_length if name in args.sizes else None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        first = tokenizer(workloads[AS_IT_IS][: max(args.batch_sizes)], verbose=False).input_ids
        models = Models(model, tokenizer, Path(folder), first)
        for workload, sentences in workloads.items():
            factor = GROWTH if workload == LONGER else 1
            search = Search(args.num_beams, args.length_penalty, forced_length and factor * forced_length)
            systems = models.build_systems(search, threads=torch.get_num_threads())
            ids = tokenizer(sentences, verbose=False).input_ids
            for batch_size in args.batch_sizes:
                batches = [ids[start : start + batch_size] for start in range(0, len(ids), batch_size)]
                found = compare(systems, batches, search, args)
                rows += [{"model": name, "workload": workload, **row} for row in found]
    weights = "trained" if forced_length is None else f"random, forced to {forced_length} tokens"
    differences = ", ".join(f"{name} differ by {value:.1e}" for name, value in models.differences.items())
    description = (
        f"{describe_model(model.config)}; {weights}; {num_trained(model):,} parameters, {num_trained(models.marian):,} "
        f"in Marian; {differences} at most"
    )
    return description, rows


def format_speeds(rows: Sequence[dict]) -> str:
    columns = {
        "system": "{system}",
        "model": "{model}",
        "batch": "{batch_size}",
        "sentences/s": "{sentences_per_second:.1f}",
        "tokens/s": "{tokens_per_second:,.0f}",
        **{f"/ {peer}": f"{{ratios[{peer}]}}" for peer in rows[0]["ratios"]},
        "same translations": "{agreement}",
        "model, MiB": "{model_memory_mib:,.0f}",
        "search, MiB": "{search_memory_mib:,.0f}",
    }
    return format_rows([row | {"agreement": _format_agreement(row)} for row in rows], columns)


def _format_agreement(row: dict) -> str:
    if row["same_as"] is None:
        return "-"
    return f"{row['same_translations']} of {row['sentences']} as {row['same_as']}"


def format_growth(rows: Sequence[dict]) -> str:
    """Return a line per system: how time and memory grow from the text as it is to more and longer text."""
    workloads = (AS_IT_IS, MORE, LONGER)
    found: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        found.setdefault((row["system"], row["model"], str(row["batch_size"])), {})[row["workload"]] = row
    lines = []
    for key, by_workload in found.items():
        seconds = [statistics.median(by_workload[workload]["seconds"]) for workload in workloads]
        memory = [f"{by_workload[workload]['search_memory_mib']:,.0f}" for workload in workloads]
        times = [f"{its / seconds[0]:.1f}" for its in seconds[1:]]
        lines.append((*key, f"{seconds[0]:.2f}", *times, *memory))
    header = ("system", "model", "batch", "seconds", "more", "longer", "search, MiB", "more", "longer")
    return format_table(header, lines)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_quickly(build_parser(), argv, **QUICK)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    sentences = read_sentences(args.source)
    workloads = build_workloads(sentences, args)
    if args.model is None:
        args.sizes = args.sizes or ["small"]
    models = {} if args.model is None else {args.model.name: load_translator(args.model)}
    description, rows = describe_machine(), []
    for size in args.sizes:
        models[size] = build_random(size, sentences, vocab_size=args.vocab_size)
    for name, (model, tokenizer) in models.items():
        description[name], found = measure(name, model, tokenizer, workloads, args)
        rows += found
    with contextlib.suppress(PackageNotFoundError):
        description["versions"] += f", ctranslate2 {version('ctranslate2')}"
    description |= {
        "search": f"beam {args.num_beams}, alpha {args.length_penalty}, at most source + {LENGTH_OFFSET} tokens",
        "sentences": f"{len(workloads[AS_IT_IS])} of {args.source.name if args.source else 'the phrasebook'}",
        "measured": f"{args.repeats} repeats, in turns pass by pass, {args.clock} time; / is the ratio of sentences/s "
        f"to that system's (min to max)",
    }
    table = format_growth(rows) if args.growth else format_speeds(rows)
    title = "Growth of decoding" if args.growth else "Decoding"
    report(f"{title}, {', '.join(models)}", description, table, rows, args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
