"""What the benchmark programs share: a MarianMTModel of equal size, the measuring, the tables."""

import argparse
import datetime
import json
import multiprocessing
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import tokenizers
import torch
import transformers
from transformers import MarianConfig, MarianMTModel

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.batching import TokenizedPairs
from vaswani_transformer.data.corpus import Pair, read_parallel_files
from vaswani_transformer.data.preparation import prepare
from vaswani_transformer.layers_vaswani import sinusoids
from vaswani_transformer.recipes import MULTI30K_TINY

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

# Our names of the weights, and Marian's.
MARIAN_NAMES = (
    (".self_attention.", ".self_attn."),
    (".self_attention_residual.norm.", ".self_attn_layer_norm."),
    (".cross_attention.", ".encoder_attn."),
    (".cross_attention_residual.norm.", ".encoder_attn_layer_norm."),
    (".feed_forward_residual.norm.", ".final_layer_norm."),
    (".feed_forward.", "."),
)


def add_common_options(parser: argparse.ArgumentParser, *, default_size: str) -> None:
    """Options of both programs."""
    parser.add_argument("--size", choices=tuple(SIZES), default=default_size, help="default: %(default)s")
    parser.add_argument("--vocab_size", type=int, help="default: that of the size")
    parser.add_argument("--source", type=Path, help="sentences, one a line; default: the built-in phrasebook")
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="default: as many as PyTorch takes")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu counts processor time, for a machine that has other work; with --threads 1, or the waiting of "
        "threads for each other counts too; default: %(default)s",
    )
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    parser.add_argument(
        "--save", action="store_true", help=f"append the table to a dated file in {RESULTS_FOLDER.name}/"
    )


def build_config(args: argparse.Namespace) -> VaswaniConfig:
    """That of `--size`, with `--vocab_size` entries also where the text is too short to fill them: they cost time."""
    vocab_size = {} if args.vocab_size is None else {"vocab_size": args.vocab_size}
    return VaswaniConfig(**SIZES[args.size] | vocab_size)


def read_pairs(source: Path | None, target: Path | None, *, count: int) -> list[Pair]:
    """The first `count` pairs of two text files, or of the built-in phrasebook."""
    if source is None:
        # Imported here because files need none of it.
        from vaswani_transformer.data.phrasebook.pairs import generate_pairs

        return list(generate_pairs("de", split="train", num_pairs=count))
    return list(islice(read_parallel_files(source, target), count))


def prepare_pairs(pairs: Sequence[Pair], folder: Path, *, vocab_size: int) -> TokenizedPairs:
    """Tokenise as `vaswani prepare` does, into `folder`, with a vocabulary learnt from the same text."""
    # Training wants a development set; what is in it does not matter here.
    prepare(lambda: pairs, lambda: pairs[:DEV_PAIRS], folder, vocab_size=vocab_size)
    return load_pairs(folder)


def load_pairs(folder: Path) -> TokenizedPairs:
    """The training pairs of prepared data."""
    return TokenizedPairs.load(folder / "train", pad_token_id=VaswaniConfig.pad_token_id)


# The twin


def build_marian(config: VaswaniConfig) -> MarianMTModel:
    """A MarianMTModel of the sizes of `config`, with weights of its own.

    Raises:
        ValueError: if Marian has no such model.
    """
    unlike = {
        "position_embedding_type": config.position_embedding_type != "sinusoidal",
        "d_k and d_v": {config.d_k, config.d_v} != {config.d_model // config.num_heads},
        "attention_window": config.attention_window is not None,
        "tie_word_embeddings": not config.tie_word_embeddings,
    }
    if any(unlike.values()):
        raise ValueError(
            f"MarianMTModel cannot have the {', '.join(name for name, differs in unlike.items() if differs)} of "
            f"this model. Compare a model whose config differs from the base model in its sizes only."
        )
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            activation_function=config.activation_function,
            max_position_embeddings=config.max_position_embeddings,
            scale_embedding=True,
            pad_token_id=config.pad_token_id,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            forced_eos_token_id=None,
            decoder_start_token_id=config.decoder_start_token_id,
        )
    )
    for module in marian.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config.layer_norm_eps  # no field of MarianConfig
    return marian


@torch.no_grad()
def copy_weights(model: VaswaniForConditionalGeneration, marian: MarianMTModel) -> None:
    """Make `marian` compute what `model` does. Biases that `model` lacks become zero."""
    weights = marian.state_dict()
    own = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in MARIAN_NAMES:
            name = name.replace(ours, theirs)
        own["final_logits_bias" if name == "lm_head.bias" else name] = weight
    positions = torch.arange(marian.config.max_position_embeddings)
    table = sinusoids(positions, d_model=model.config.d_model, layout=model.config.position_layout)
    for name, weight in weights.items():
        if name.endswith("embed_positions.weight"):
            weight.copy_(table)
        elif name in own:
            weight.copy_(own.pop(name).reshape(weight.shape))
        else:
            assert name.endswith("bias"), name
            weight.zero_()
    assert not own, f"Marian has no place for {sorted(own)}"


def num_trained(model: torch.nn.Module) -> int:
    """Parameters that are trained: Marian's position table is none."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# The measuring


def time_interleaved(
    systems: dict[str, Callable[[dict], object]], batches: Sequence[dict], *, repeats: int, clock: str
) -> dict[str, list[float]]:
    """Seconds each system takes for all `batches`, a number for each repeat.

    The systems take turns batch by batch, and another one begins each time, so that whatever else the machine
    has to do falls on all of them alike.
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
    """`work(*args)` in a fresh process, so that no memory of ours and no other system is in its count."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(work, *args).result()


def peak_growth(work: Callable[[], None]) -> float:
    """MiB that the resident memory of this process grew by at the peak of `work()`."""
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
    """What a speed depends on besides the code."""
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


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, numbers to the right."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


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
        args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.save:
        name = f"{description['date']}_{title.split(',')[0].lower()}.md"
        RESULTS_FOLDER.mkdir(parents=True, exist_ok=True)
        with (RESULTS_FOLDER / name).open("a", encoding="utf-8") as file:
            file.write(f"```\n{text}\n```\n\n")
