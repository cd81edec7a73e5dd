"""Parts that the benchmark programs share: a MarianMTModel of our model's size, functions that measure, and tables."""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate
from torch import nn
from transformers import MarianMTModel

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.conversion.marian import build_marian_config
from vaswani_transformer.data.phrasebook.pairs import generate_pairs
from vaswani_transformer.training.recipes import RECIPES

OURS, MARIAN = "vaswani_transformer", "MarianMTModel"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

# The values of --size and --sizes -> recipes whose models have these sizes.
SIZES = {"tiny": RECIPES["multi30k_tiny"], "small": RECIPES["general_en_de_small"], "base": RECIPES["base_en_de"]}


def start_parser(text: str) -> argparse.ArgumentParser:
    """Return a parser with the options that say how time is measured and where the result goes.

    Its help begins with `text`.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="how often to measure; default: %(default)s")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; default: PyTorch's choice")
    text = "cpu counts processor time: use it with --threads 1, on a machine that has other work; default: %(default)s"
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help=text)
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the benchmarks of training and decoding share: the vocabulary and the text."""
    parser.add_argument("--vocab_size", type=int, help="entries of the vocabulary; default: those of the model size")
    parser.add_argument("--source", type=Path, help="sentences, one per line; default: the built-in phrasebook")


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None, **quick) -> argparse.Namespace:
    """Return the arguments, and set the number of PyTorch's threads. `quick` holds the defaults under --quick."""
    settings = " ".join(f"--{name} {' '.join(map(str, np.atleast_1d(value)))}" for name, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"answer in five minutes on two cores, with {settings}")
    if parser.parse_args(argv).quick:
        parser.set_defaults(**quick)
    args = parser.parse_args(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return args


def build_config(size: str, *, vocab_size: int | None) -> VaswaniConfig:
    """Return the config of a size.

    If `vocab_size` is given, the vocabulary has this number of entries, even if the text fills fewer of them. An entry
    costs time even if it is unused.
    """
    recipe = SIZES[size]
    return VaswaniConfig(**recipe.model, vocab_size=vocab_size or recipe.vocab_size)


def read_pairs(source: Path | None, target: Path | None, *, count: int) -> list[tuple[str, str]]:
    """Return the first `count` pairs of two text files, or of the built-in phrasebook if `source` is None."""
    if source is None:
        return list(generate_pairs(split="train", num_pairs=count))
    sides = (path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in (source, target))
    return list(islice(zip(*sides, strict=True), count))


# The MarianMTModel of equal size


def build_marian(config: VaswaniConfig) -> MarianMTModel:
    """Return a MarianMTModel with the sizes in `config`, and random weights.

    After `copy_weights`, the MarianMTModel computes the same as our model.

    Raises:
        ValueError: if Marian has no model that corresponds to `config`.
    """
    marian = MarianMTModel(build_marian_config(config))
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.layer_norm_eps  # MarianConfig has no field for it
    return marian


class MarianWithLoss(nn.Module):
    """A MarianMTModel with the usual loss: `cross_entropy` with label smoothing on the whole matrix of logits."""

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.config, self.model = config, build_marian(config)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss in nats per token of `labels` (B, T) given `input_ids` (B, S)."""
        start = self.model.prepare_decoder_input_ids_from_labels(labels)
        logits = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=start, use_cache=False
        ).logits
        smoothing = self.config.label_smoothing
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)


def num_trained(model: nn.Module) -> int:
    """Return the number of parameters that are trained. Marian's table of positions is not trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# Measurements


def time_interleaved(
    systems: dict[str, Callable[[dict], object]], batches: Sequence[dict], *, repeats: int, clock: str
) -> dict[str, list[float]]:
    """Return the seconds that each system takes for all `batches`, one number per repeat.

    The systems take turns: each batch is given to all systems, and another system begins each time. So other work on
    the machine slows all systems equally.
    """
    now = CLOCKS[clock]
    names = list(systems)
    seconds = {name: [0.0] * repeats for name in names}
    for repeat in range(repeats):
        for turn, batch in enumerate(batches):
            first = (repeat + turn) % len(names)
            for name in names[first:] + names[:first]:
                started = now()
                systems[name](batch)
                seconds[name][repeat] += now() - started
    return seconds


@dataclass(frozen=True)
class Ratio:
    """Our speed divided by the speed of another system, over all repeats. Above 1, our system is faster."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """Return the ratio from the seconds that both systems took for the same work in each repeat."""
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.min:.2f} to {self.max:.2f})"


def measure_in_child(work: Callable[..., float], *args) -> float:
    """Return what `work(*args)` returns in a fresh process, whose memory holds no other system."""
    with open_child() as call:
        return call(work, *args)


@contextlib.contextmanager
def open_child() -> Iterator[Callable]:
    """Yield a function `call(work, *args)` that runs `work(*args)` in a fresh process. All calls share this process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        yield lambda work, *args: pool.submit(work, *args).result()


def peak_growth(work: Callable[[], None]) -> float:
    """Return the MiB by which the resident memory of this process grows at the peak of `work()`."""
    Path("/proc/self/clear_refs").write_text("5")  # 5 resets the peak to the present value
    before = _read_peak()
    work()
    return (_read_peak() - before) / 2**10


def _read_peak() -> int:
    """Return the peak of the resident memory of this process in KiB."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


# The report


def describe_machine() -> dict[str, str]:
    """Return what a measured speed depends on besides our code: date, versions, processor and threads."""
    packages = ("torch", "transformers", "tokenizers", "vaswani-transformer")
    cpuinfo = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return {
        "date": datetime.date.today().isoformat(),
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]),
        "CPU": f"{name[1] if name else platform.machine()}, {multiprocessing.cpu_count()} cores",
        "threads": str(torch.get_num_threads()),
    }


def describe_model(config: VaswaniConfig) -> str:
    return (
        f"d_model {config.d_model}, d_ff {config.d_ff}, {config.num_heads} heads, {config.encoder_layers} + "
        f"{config.decoder_layers} layers, vocabulary {config.vocab_size:,}, dropout {config.dropout}"
    )


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True, colglobalalign="right", colalign=["left"])


def format_rows(rows: Sequence[Mapping], columns: Mapping[str, str]) -> str:
    """Return a table of `rows`; `columns` maps each header to the format of its cells, such as "{seconds:.1f}"."""
    return format_table(list(columns), [[text.format(**row) for text in columns.values()] for row in rows])


def report(title: str, description: dict[str, str], table: str, rows: list[dict], output: Path | None) -> None:
    """Print a result. If `output` is given, also write it to this file, as JSON."""
    width = max(map(len, description)) + 2
    print("\n".join([title, "", *(f"{name + ':':{width}}{text}" for name, text in description.items()), "", table]))
    if output is not None:
        # A Ratio is written as a dictionary of its fields.
        result = json.dumps({"title": title, **description, "rows": rows}, default=vars, indent=2)
        output.write_text(f"{result}\n", encoding="utf-8")
