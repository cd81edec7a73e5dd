"""Parts that the benchmark programs share: a MarianMTModel of equal size, the measuring, the tables."""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from transformers import MarianMTModel

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.commands.tables import format_table as format_table
from vaswani_transformer.conversion.marian import build_marian_config
from vaswani_transformer.data.batching import TokenizedPairs
from vaswani_transformer.data.corpus import Pair, read_parallel_files
from vaswani_transformer.data.preparation import Corpus, prepare
from vaswani_transformer.training.recipes import MULTI30K_TINY

OURS, MARIAN = "vaswani_transformer", "MarianMTModel"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
RESULTS_FOLDER = Path(__file__).parent / "benchmarks" / "results"
DEV_PAIRS = 100

# Fields of VaswaniConfig.
SIZES: dict[str, dict] = {
    "tiny": MULTI30K_TINY.model | {"vocab_size": MULTI30K_TINY.vocab_size},
    "small": {
        "d_model": 256,
        "d_ff": 1024,
        "num_heads": 4,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "vocab_size": 10_000,
    },
    "base": {},
}


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Options of training and decoding: the size of the model and its text."""
    parser.add_argument("--vocab_size", type=int, help="default: that of the size")
    parser.add_argument("--source", type=Path, help="sentences, one per line; default: the built-in phrasebook")


def add_timing_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how time is measured."""
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="default: as many as PyTorch takes")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu counts processor time, for a machine that has other work; with --threads 1, or the waiting of "
        "threads for each other counts too; default: %(default)s",
    )


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Options that say where `report` writes the result."""
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    parser.add_argument(
        "--save", action="store_true", help=f"append the table to a dated file in {RESULTS_FOLDER.name}/"
    )


def parse_quickly(parser: argparse.ArgumentParser, argv: Sequence[str] | None, **quick) -> argparse.Namespace:
    """Return the arguments, with `quick` as defaults if `--quick` is given."""
    settings = " ".join(f"--{name} {' '.join(map(str, np.atleast_1d(value)))}" for name, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"an answer in five minutes on two cores: {settings}")
    if parser.parse_args(argv).quick:
        parser.set_defaults(**quick)
    return parser.parse_args(argv)


def names_among(choices: Collection[str], kind: str) -> Callable[[str], list[str]]:
    """Return the type of an argument that takes some of `choices` between commas; `kind` says what they are."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in choices]:
            raise argparse.ArgumentTypeError(
                f"there is no {kind} {', '.join(unknown)}; choose from {','.join(choices)}"
            )
        return names

    return parse


def build_config(size: str, *, vocab_size: int | None) -> VaswaniConfig:
    """Return the config of a size, with `vocab_size` entries even if the text does not fill them: they cost time."""
    return VaswaniConfig(**SIZES[size] | ({} if vocab_size is None else {"vocab_size": vocab_size}))


def read_pairs(source: Path | None, target: Path | None, *, count: int) -> list[Pair]:
    """Return the first `count` pairs of two text files, or of the built-in phrasebook."""
    if source is None:
        # Imported here because files need none of it.
        from vaswani_transformer.data.phrasebook.pairs import generate_pairs

        return list(generate_pairs(split="train", num_pairs=count))
    return list(islice(read_parallel_files(source, target), count))


def prepare_pairs(pairs: Sequence[Pair], folder: Path, *, vocab_size: int) -> TokenizedPairs:
    """Tokenise as `vaswani prepare` does, into `folder`, with a vocabulary learnt from the same text."""
    # Training wants a development set; what is in it does not matter here.
    prepare([Corpus(lambda: pairs)], lambda: pairs[:DEV_PAIRS], folder, vocab_size=vocab_size)
    return load_pairs(folder)


def load_pairs(folder: Path) -> TokenizedPairs:
    """Load the training pairs of prepared data."""
    return TokenizedPairs.load(folder / "train", pad_token_id=VaswaniConfig.pad_token_id)


# The twin


def build_marian(config: VaswaniConfig) -> MarianMTModel:
    """Build a MarianMTModel of the sizes of `config`, with weights of its own; `copy_weights` makes it a twin.

    Raises:
        ValueError: if Marian has no such model.
    """
    marian = MarianMTModel(build_marian_config(config))
    for module in marian.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config.layer_norm_eps  # no field of MarianConfig
    return marian


def num_trained(model: torch.nn.Module) -> int:
    """Return the number of trained parameters; Marian's position table is not trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# The measuring


def time_interleaved(
    systems: dict[str, Callable[[dict], object]], batches: Sequence[dict], *, repeats: int, clock: str
) -> dict[str, list[float]]:
    """Return the seconds that each system takes for all `batches`, one number per repeat.

    The systems take turns batch by batch, and another one begins each time, so that other work of the machine slows
    all of them equally.
    """
    now, names = CLOCKS[clock], list(systems)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        totals = dict.fromkeys(names, 0.0)
        for turn, batch in enumerate(batches):
            first = (repeat + turn) % len(names)
            for name in names[first:] + names[:first]:
                started = now()
                systems[name](batch)
                totals[name] += now() - started
        for name in names:
            seconds[name].append(totals[name])
    return seconds


@dataclass(frozen=True)
class Ratio:
    """Our speed divided by that of another system, repeat by repeat: above 1 we are faster."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """From the seconds that both took for the same work."""
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.min:.2f} to {self.max:.2f})"


def measure_in_child(work: Callable[..., float], *args) -> float:
    """Return `work(*args)` of a fresh process, whose memory holds no other system."""
    with open_child() as call:
        return call(work, *args)


@contextlib.contextmanager
def open_child() -> Iterator[Callable]:
    """Yield a function that calls another, `call(work, *args)`, each time in the same fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        yield lambda work, *args: pool.submit(work, *args).result()


def peak_growth(work: Callable[[], None]) -> float:
    """Return the MiB by which the resident memory of this process grows at the peak of `work()`."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():  # not Linux: peak over peak, right where nothing before was larger
        unit = 2**20 if sys.platform == "darwin" else 2**10
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit
    clear.write_text("5")  # sets the peak back to the present
    before = _kibibytes(status, "VmRSS")
    work()
    return (_kibibytes(status, "VmHWM") - before) / 2**10


def _kibibytes(status: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    assert match is not None, f"{status} has no {name}"
    return int(match[1])


# The report


def describe_machine() -> dict[str, str]:
    """Return the facts besides the code on which a speed depends."""
    packages = {"torch": torch.__version__, "transformers": transformers.__version__}
    packages |= {"tokenizers": tokenizers.__version__, "vaswani-transformer": version("vaswani-transformer")}
    return {
        "date": datetime.date.today().isoformat(),
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{name} {number}" for name, number in packages.items())]
        ),
        "CPU": f"{_cpu_name()}, {multiprocessing.cpu_count()} cores",
        "threads": str(torch.get_num_threads()),
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return match[1] if match else platform.processor() or platform.machine()


def describe_model(config: VaswaniConfig) -> str:
    return (
        f"d_model {config.d_model}, d_ff {config.d_ff}, {config.num_heads} heads, {config.encoder_layers} + "
        f"{config.decoder_layers} layers, vocabulary {config.vocab_size:,}, dropout {config.dropout}"
    )


def format_rows(rows: Sequence[Mapping], columns: Mapping[str, str]) -> str:
    """Return a table of `rows`; `columns` maps each header to the format of its cells, such as "{seconds:.1f}"."""
    return format_table(list(columns), [[text.format(**row) for text in columns.values()] for row in rows])


def format_report(title: str, description: dict[str, str], table: str) -> str:
    width = max(map(len, description)) + 2
    lines = [f"{name + ':':{width}}{text}" for name, text in description.items()]
    return "\n".join([title, "", *lines, "", table])


def report(title: str, description: dict[str, str], table: str, rows: list[dict], args) -> None:
    """Print a result, and write it where `--output` and `--save` say."""
    text = format_report(title, description, table)
    print(text)
    if args.output is not None:
        result = {"title": title, **description, "rows": rows}
        text_of_rows = json.dumps(result, default=vars, indent=2)  # vars: of a Ratio
        args.output.write_text(f"{text_of_rows}\n", encoding="utf-8")
    if args.save:
        name = f"{description['date']}_{title.split(',')[0].lower()}.md"
        RESULTS_FOLDER.mkdir(parents=True, exist_ok=True)
        with (RESULTS_FOLDER / name).open("a", encoding="utf-8") as file:
            file.write(f"```\n{text}\n```\n\n")
