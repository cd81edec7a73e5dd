"""Speed of training on one GPU and on all: base and big, eager and compiled, beside MarianMTModel.

    python scripts/gpu_report.py --data data/general --output results
    python scripts/gpu_report.py --source train.en --target train.de --output results
    python scripts/gpu_report.py --device cpu --size tiny --updates 2 --source train.en --target train.de

Each system trains in a process of its own. Batches and updates are those of `vaswani train`, in bfloat16 autocast,
without checkpoints, log and the check for SIGTERM. Marian takes the place of our model, on the same batches, with
`cross_entropy` on all its logits. A system that fails, for example from lack of memory, is reported, and the others
follow; the result files are replaced after each.

The same updates run twice. The second time is the steady state: an update takes the time between two marks that the
device sets, which includes copying, forward, backward and Adam. By how much longer the first time took is called
building: compilation, plans and memory for shapes that are new. Reading is outside both. Tokens per second count target
tokens without padding, of all processes.

Then, of a few updates more: host ms is the processor time of an update that begins with an idle device; waits count how
often one makes the host wait; kernels and idle share come from a profile. Idle is what the profiled work of the device
leaves of the steady time. On a CPU operations take the place of kernels.

Model FLOP of a process are counted by `count_flop` of vaswani_transformer/training/cost.py, for the tokens without
padding. The share is relative to the rate of a large bfloat16 matrix product, measured in the same run. Hours are those
of the recipe's number of updates at the measured mean, with as many processes. The training cost is the paper's: time x
devices x sustained rate of a device, for which the matrix rate stands.

A machine without a network needs wheels of missing or outdated packages. If it has PyTorch with an earlier
transformers 5, fetch beforehand

    pip download --no-deps --only-binary=:all: --python-version 3.12 --constraint constraints.txt --dest wheels \\
        transformers datasets dill multiprocess
    vaswani prepare --train train.en train.de --dev dev.en dev.de --vocab_size 37000 --output data/general

and run there, in the root of this repository with `wheels` and `data` in it,

    python3 -m pip install --no-index --no-deps --no-build-isolation --upgrade --target site wheels/*.whl . &&
        PYTHONPATH=site python3 scripts/gpu_report.py --data data/general --output results
"""

import argparse
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import torch
from benchmark_common import (
    OURS,
    RESULTS_FOLDER,
    describe_machine,
    format_report,
    format_table,
    measure_in_child,
    num_trained,
    peak_growth,
    prepare_pairs,
    read_pairs,
)
from benchmark_peers import Marian
from torch._dynamo.utils import counters
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.batching import Update
from vaswani_transformer.training.cost import (
    PAPER_DEVICE,
    PAPER_DEVICES,
    PAPER_HOURS,
    compute_training_cost,
    count_flop,
    find_rate,
)
from vaswani_transformer.training.recipes import BASE, BIG, MULTI30K_TINY, Recipe
from vaswani_transformer.training.trainer import Trainer

TITLE = "Training"
RECIPES: dict[str, Recipe] = {"base": BASE, "big": BIG, "tiny": MULTI30K_TINY}
EAGER, COMPILED, MARIAN = "eager", "compiled", "marian"
LABELS = {EAGER: OURS, COMPILED: f"{OURS}, compiled", MARIAN: Marian.label}
MATRICES = {"cuda": (8192, 200), "cpu": (1024, 5)}  # rows and columns of a square matrix, and number of products
PROFILED_UPDATES = 3
HOST_UPDATES = 10  # of whose processor time the median is taken

PAPER_SECONDS = {"base": 0.4, "big": 1.0}  # per update, section 5.2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of `vaswani prepare`")
    parser.add_argument("--source", type=Path, nargs="+", help="or text to prepare: one sentence per line")
    parser.add_argument("--target", type=Path, nargs="+", help="their translations, in as many files")
    parser.add_argument("--vocab_size", type=int, default=37_000, help="to learn from the text; default: %(default)s")
    parser.add_argument("--device", choices=tuple(MATRICES), default="cuda", help="default: %(default)s")
    parser.add_argument("--size", nargs="+", choices=tuple(RECIPES), default=["base", "big"], help="default: base big")
    parser.add_argument("--systems", nargs="+", choices=tuple(LABELS), default=list(LABELS), help="default: all")
    parser.add_argument("--updates", type=int, default=200, help="measured of each system; default: %(default)s")
    text = "numbers of processes, one device each; default: 1, and one for each device"
    parser.add_argument("--processes", type=int, nargs="+", help=text)
    text = f"folder of the result files; default: {RESULTS_FOLDER.name}/"
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER, help=text)
    return parser


# The measuring


class Marks:
    """Points in the work of a device, set without waiting for it, and the time between them."""

    def __init__(self, device: str):
        self.device = device
        self.marks: list = []

    def set(self) -> None:
        if self.device == "cuda":
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """Return the time from each mark to the next; waits for the device."""
        pairs = zip(self.marks[:-1], self.marks[1:], strict=True)
        if self.device == "cuda":
            torch.cuda.synchronize()
            return [first.elapsed_time(second) for first, second in pairs]
        return [1000 * (second - first) for first, second in pairs]


def measure_matrix_rate(device: str) -> float:
    """Return the FLOP per second of a large bfloat16 matrix product, the median of many."""
    size, repeats = MATRICES[device]
    # Random, because products of zeros run faster.
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    marks = Marks(device)
    for _ in range(repeats):
        one @ other
    for _ in range(repeats + 1):
        marks.set()
        one @ other
    return 2 * size**3 / (statistics.median(marks.milliseconds()) / 1000)


def measure_peak_memory(work: Callable[[], None], device: str) -> float:
    """Return MiB: allocated on a GPU, or by how much the process grows on a CPU."""
    if device == "cpu":
        return peak_growth(work)
    work()
    return torch.cuda.max_memory_allocated() / 2**20


class MarianTrainer(Trainer):
    """The trainer of our model, with Marian in its place."""

    def _build_model(self) -> Marian:
        return Marian(VaswaniConfig(**{"vocab_size": len(self.tokenizer)} | self.recipe.model))


class Run:
    """The first updates of a training, twice."""

    def __init__(self, system: str, size: str, data: Path, args: argparse.Namespace):
        self.system, self.size, self.data, self.args = system, size, data, args
        self.marks = Marks(args.device)
        self.source_lengths: list[np.ndarray] = []
        self.target_lengths: list[np.ndarray] = []

    def train(self) -> None:
        """Train from building the model to the last update."""
        recipe = replace(RECIPES[self.size], compile=self.system == COMPILED)
        trainer_class = MarianTrainer if self.system == MARIAN else Trainer
        with tempfile.TemporaryDirectory() as folder:
            self.trainer = trainer_class(recipe, self.data, Path(folder), mixed_precision="bf16")
            updates = list(islice(self.trainer._read_updates(), self.args.updates))
            self.first_seconds = self._run_all(updates)
            self._measure(updates)
            self.host_ms = statistics.median(self._measure_host(update) for update in updates[:HOST_UPDATES])
            self.host_waits = self._count_host_waits(updates[0])
            self.kernels, self.busy_ms = self._profile(updates[:PROFILED_UPDATES])

    def _wait(self) -> None:
        """Wait for the device."""
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def _run_all(self, updates: Sequence[Update]) -> float:
        """Return the seconds that `updates` take, up to the end of the device's work."""
        started = time.perf_counter()
        for update in updates:
            self.trainer._run_update(update)
        self._wait()
        return time.perf_counter() - started

    def _measure(self, updates: Sequence[Update]) -> None:
        pairs = self.trainer.train_pairs
        self.trainer.tally.start_line()
        self.target_tokens = sum(update.target_tokens for update in updates)
        self.marks.set()
        for update in updates:
            self.trainer._run_update(update)
            self.marks.set()
        for update in updates:
            rows = np.concatenate(update.rows)
            self.source_lengths.append(pairs.sources.lengths[rows])
            self.target_lengths.append(pairs.targets.lengths[rows])
        self.means = self.trainer.tally.compute_means()

    def _measure_host(self, update: Update) -> float:
        """Return milliseconds of processor time until all work of an update is handed to the device."""
        self._wait()
        started = time.process_time()
        self.trainer._run_update(update)
        return 1000 * (time.process_time() - started)

    def _profile(self, updates: Sequence[Update]) -> tuple[float, float]:
        """Return the kernels of an update, and the milliseconds for which the device is busy with them."""
        is_cuda = self.args.device == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        with profile(activities=activities) as recorded:
            self._run_all(updates)
        kind = DeviceType.CUDA if is_cuda else DeviceType.CPU
        events = [event for event in recorded.events() if event.device_type == kind and not event.is_user_annotation]
        spans = sorted((event.time_range.start, event.time_range.end) for event in events)
        busy, end = 0.0, 0.0
        for start, stop in spans:  # of several streams, and on a CPU one within the other
            busy += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return len(events) / len(updates), busy / 1000 / len(updates)

    def _count_host_waits(self, update: Update) -> int | None:
        """Count how often one more update makes the host wait for the device; `None` on a CPU."""
        if self.args.device == "cpu":
            return None
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            self.trainer._run_update(update)
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing" in str(wait.message) for wait in waits)

    def summarise(self) -> dict:
        """Return a row of the result."""
        milliseconds = self.marks.milliseconds()
        seconds = sum(milliseconds) / 1000
        sources, targets = np.concatenate(self.source_lengths), np.concatenate(self.target_lengths)
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return {
            "parameters": num_trained(model),
            "vocab_size": model.config.vocab_size,
            "updates": len(milliseconds),
            "median_ms": statistics.median(milliseconds),
            "p90_ms": float(np.quantile(milliseconds, 0.9)),
            "mean_ms": statistics.mean(milliseconds),
            "building_seconds": self.first_seconds - seconds,
            "host_ms": self.host_ms,
            "kernels": self.kernels,
            "busy_ms": self.busy_ms,
            "idle_share": max(0.0, 1 - self.busy_ms / statistics.median(milliseconds)),
            "graphs": counters["stats"]["unique_graphs"],
            "target_tokens_per_update": self.target_tokens / len(milliseconds),
            "target_tokens_per_second": self.target_tokens / seconds,
            "model_flop_per_second": count_flop(model.config, sources, targets) / seconds,
            "fill": self.means["fill"],
            "loss": self.means["loss"],
            "skipped_updates": self.means["skipped"],
            "host_waits": self.host_waits,
            "milliseconds": milliseconds,
        }


def measure_system(system: str, size: str, data: Path, args: argparse.Namespace) -> dict:
    """Train `system` for a few updates; runs in a process of its own, or in several."""
    run = Run(system, size, data, args)
    memory = measure_peak_memory(run.train, args.device)
    return run.summarise() | {"peak_memory_mib": memory}


def measure_in_processes(num_processes: int, *args) -> dict:
    """Return the row of the first of several processes that train together; `args` are those of `measure_system`."""
    if num_processes == 1:
        return measure_in_child(measure_system, *args)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as held:
        # The port is held until the processes have met on it, so that no other program is given it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        path = Path(folder) / "row.json"
        torch.multiprocessing.spawn(_measure_rank, (num_processes, port, path, *args), nprocs=num_processes)
        return json.loads(path.read_text(encoding="utf-8"))


def _measure_rank(rank: int, num_processes: int, port: int, path: Path, *args) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_processes)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    row = measure_system(*args)
    if rank == 0:
        path.write_text(json.dumps(row), encoding="utf-8")
    torch.distributed.destroy_process_group()


def measure_all(data: Path, args: argparse.Namespace, on_row: Callable[[list[dict]], None]) -> list[dict]:
    """Return a row for each system of each size; `on_row` gets all rows after each."""
    rows = []
    for size in args.size:
        for num_processes, system in product(args.processes, args.systems):
            row = {"size": size, "system": LABELS[system], "processes": num_processes}
            print(f"{size}: {row['system']}, processes: {num_processes} ...", file=sys.stderr, flush=True)
            try:
                row |= measure_in_processes(num_processes, system, size, data, args)
            except Exception as error:  # the other systems can still be measured
                row["error"] = f"{type(error).__name__}: {error}"
                print(row["error"], file=sys.stderr, flush=True)
            rows.append(row)
            on_row(rows)
    return rows


# The report


def format_row(row: dict, marian: dict | None, matrix_rate: float) -> dict[str, str]:
    """Return the cells by their headers; `marian` is the row of the same size and processes, if it was measured."""
    if "error" in row:
        place = {"size": row["size"], "system": row["system"], "processes": str(row["processes"])}
        return place | {"ms per update": "failed"}
    num_updates = RECIPES[row["size"]].num_updates
    seconds = num_updates * row["mean_ms"] / 1000
    speed, rate = row["target_tokens_per_second"], row["model_flop_per_second"]
    return {
        "size": row["size"],
        "system": row["system"],
        "processes": str(row["processes"]),
        "ms per update": f"{row['median_ms']:.1f}",
        "90 % below": f"{row['p90_ms']:.1f}",
        "building, s": f"{row['building_seconds']:.0f}",
        "host ms": f"{row['host_ms']:.1f}",
        "kernels": f"{row['kernels']:,.0f}",
        "idle": f"{row['idle_share']:.0%}",
        "target tokens/s": f"{speed:,.0f}",
        "to Marian": f"{speed / marian['target_tokens_per_second']:.2f}" if marian else "",
        "model TFLOP/s": f"{rate / 1e12:.3g}",
        "of matrix rate": f"{rate / matrix_rate:.1%}",
        "memory, GiB": f"{row['peak_memory_mib'] / 2**10:.1f}",
        "hours (updates)": f"{seconds / 3600:,.1f} ({num_updates:,})",
        "training cost, FLOP": f"{compute_training_cost(seconds, row['processes'], matrix_rate):.1e}",
        "host waits": "" if row["host_waits"] is None else str(row["host_waits"]),
        "loss": "not finite" if row["loss"] is None else f"{row['loss']:.2f}",
    }


def format_paper_row(size: str) -> dict[str, str]:
    """Return the figures of the paper for its own training by their headers."""
    hours = PAPER_HOURS[size]
    cost = compute_training_cost(3600 * hours, PAPER_DEVICES, find_rate(PAPER_DEVICE))
    return {
        "size": size,
        "system": f"the paper, {PAPER_DEVICES} {PAPER_DEVICE}",
        "ms per update": f"{1000 * PAPER_SECONDS[size]:.0f}",
        "hours (updates)": f"{hours:,.1f} ({RECIPES[size].num_updates:,})",
        "training cost, FLOP": f"{cost:.1e}",
    }


def format_rows(rows: list[dict], matrix_rate: float) -> str:
    whole = [row for row in rows if row["system"] == LABELS[MARIAN] and "error" not in row]
    marians = {(row["size"], row["processes"]): row for row in whole}
    lines = []
    for size in dict.fromkeys(row["size"] for row in rows):
        of_size = [row for row in rows if row["size"] == size]
        lines += [format_row(row, marians.get((size, row["processes"])), matrix_rate) for row in of_size]
        lines += [format_paper_row(size)] if size in PAPER_HOURS else []
    errors = [
        f"{row['size']}, {row['system']}, processes {row['processes']}: {row['error']}"
        for row in rows
        if "error" in row
    ]
    header = max(lines, key=len)  # of a system that was measured
    table = format_table(list(header), [[cells.get(name, "") for name in header] for cells in lines])
    return "\n\n".join([table, *errors])


def describe_device(device: str) -> str:
    """Describe the device; its name stands before the first comma."""
    if device == "cpu":
        return "CPU, which shows that the program works, not the speed of a GPU"
    properties = torch.cuda.get_device_properties(0)
    return (
        f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} "
        f"multiprocessors, CUDA {torch.version.cuda}"
    )


def write_result(description: dict[str, str], matrix_rate: float, rows: list[dict], args: argparse.Namespace) -> str:
    """Write both files of a result, and return the text of one."""
    hardware = re.sub(r"\W+", "-", description["device"].split(",")[0]).lower()
    path = args.output / "_".join([description["date"], "training", hardware, *args.size])
    text = format_report(TITLE, description, format_rows(rows, matrix_rate))
    args.output.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(f"```\n{text}\n```\n", encoding="utf-8")
    result = {"title": TITLE, **description, "matrix_flop_per_second": matrix_rate, "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return text


# The program


def find_data(args: argparse.Namespace, folder: Path) -> Path:
    """Return the folder of `--data`, or of the text of `--source` and `--target`, prepared in `folder`."""
    if args.data is not None:
        return args.data
    print("preparing the text ...", file=sys.stderr, flush=True)
    files = zip(args.source, args.target, strict=True)
    pairs = [pair for source, target in files for pair in read_pairs(source, target, count=sys.maxsize)]
    prepare_pairs(pairs, folder, vocab_size=args.vocab_size)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if (args.data is None) == (args.source is None) or len(args.source or ()) != len(args.target or ()):
        raise SystemExit("give --data, or --source and --target with as many files each.")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here; --device cpu --size tiny --updates 2 tries the program.")
    if args.processes is None:
        args.processes = sorted({1, torch.cuda.device_count() if args.device == "cuda" else 1})
    os.environ["ACCELERATE_USE_CPU"] = str(args.device == "cpu")  # for the processes that train
    matrix_rate = measure_in_child(measure_matrix_rate, args.device)
    size, _ = MATRICES[args.device]
    with tempfile.TemporaryDirectory() as folder:
        data = find_data(args, Path(folder))
        description = {"device": describe_device(args.device)} | describe_machine()
        description |= {
            "data": str(args.data or ", ".join(path.name for path in args.source)),
            "matrix rate": f"{matrix_rate / 1e12:.3g} TFLOP/s, bfloat16, {size:,} x {size:,} x {size:,}",
            "measured": f"{args.updates} updates, run for the second time, bfloat16 autocast",
        }

        def on_row(rows: list[dict]) -> None:
            write_result(description, matrix_rate, rows, args)

        rows = measure_all(data, args, on_row)
    print(write_result(description, matrix_rate, rows, args))
    return int(all("error" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
