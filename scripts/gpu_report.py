"""Speed of `vaswani train` on one GPU and on all: base and big, eager and compiled.

    python scripts/gpu_report.py --data data --output report.json
    python scripts/gpu_report.py --data data --device cpu --updates 4 --sizes base --modes eager --divide_widths 16

The data are those of `vaswani prepare --recipe base_en_de`; more arguments go to `vaswani train`. Each row is a
training of its own, in bfloat16 autocast, that ends before its first checkpoint. A row that fails, for example from
lack of memory, is reported, and the others follow.

Of twice --updates updates the second half is the steady state: an update takes the time between two marks that the
device sets, which includes reading, copying, forward, backward and Adam. Building is the
extra time of the first half: compilation, plans and memory for new shapes. Then, of a few more updates: host is the
processor time of an update that begins with an idle device, waits count how often one makes the host wait, kernels and
idle share come from a profile. Idle is the part of the steady time in which the device has nothing to do. Hours are
those of the paper's number of updates. `benchmark_training.py --device cuda` compares with MarianMTModel.

A machine without a network needs wheels of missing or outdated packages:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --constraint constraints.txt --dest wheels \\
        transformers datasets dill multiprocess
    python3 -m pip install --no-index --no-deps --no-build-isolation --upgrade --target site wheels/*.whl .
    PYTHONPATH=site python3 scripts/gpu_report.py --data data --output report.json
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from benchmark_common import describe_machine, format_table, peak_growth, report
from torch.autograd import DeviceType
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from vaswani_transformer import cli

NUM_UPDATES = {"base": 100_000, "big": 300_000}  # the paper's
MODES = {"eager": "compile=false", "compiled": "compile=true"}
HOST_UPDATES, PROFILED_UPDATES = 10, 3


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of `vaswani prepare`")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--sizes", nargs="+", choices=tuple(NUM_UPDATES), default=list(NUM_UPDATES))
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=list(MODES))
    parser.add_argument("--updates", type=int, default=100, help="measured in each row; default: %(default)s")
    text = "numbers of processes, one device each; default: 1, and one for each device"
    parser.add_argument("--processes", type=int, nargs="+", help=text)
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # where a process that trains writes its row
    return parser


class Measured(BaseException):
    """Ends the training when all is measured."""


class Stopwatch:
    """Measures a training from a hook behind each step of its optimizer.

    Attributes:
        row: of the result, whole when `Measured` is raised.
    """

    def __init__(self, device: str, num_updates: int):
        self.is_cuda, self.num_updates = device == "cuda", num_updates
        self.row: dict = {}
        self.update, self.marks, self.host_ms = 0, [], []
        self.stack = contextlib.ExitStack()
        self.started = time.perf_counter()

    def __call__(self, *_) -> None:
        self.update += 1
        steady, host = 2 * self.num_updates, 2 * self.num_updates + HOST_UPDATES
        if self.num_updates <= self.update <= steady:
            if self.update == self.num_updates:
                self.wait()
                self.row["building_seconds"] = time.perf_counter() - self.started
            self.marks.append(self.mark())
        if self.update == steady:
            self.summarise_steady()
        if steady < self.update <= host:
            self.host_ms.append(1000 * (time.process_time() - self.host_started))
        if steady <= self.update < host:
            self.wait()
            self.host_started = time.process_time()
        if self.update == host:
            self.row["host_ms"] = statistics.median(self.host_ms)
            self.wait()
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.is_cuda else [])]
            self.profile = self.stack.enter_context(profile(activities=kinds))
        if self.update == host + PROFILED_UPDATES:
            self.wait()
            self.stack.close()
            self.summarise_profile()
            self.waits = self.stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            if self.is_cuda:
                torch.cuda.set_sync_debug_mode("warn")
        if self.update == host + PROFILED_UPDATES + 1:
            if self.is_cuda:
                torch.cuda.set_sync_debug_mode("default")
            self.row["host_waits"] = sum("synchronizing" in str(wait.message) for wait in self.waits)
            self.stack.close()
            raise Measured

    def wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def mark(self):
        """Return a point in the work of the device, set without waiting for it."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def summarise_steady(self) -> None:
        self.wait()
        pairs = zip(self.marks[:-1], self.marks[1:], strict=True)
        times = [a.elapsed_time(b) if self.is_cuda else 1000 * (b - a) for a, b in pairs]
        self.row["building_seconds"] -= sum(times) / 1000
        self.row |= {"median_ms": statistics.median(times), "mean_ms": statistics.mean(times), "milliseconds": times}
        if self.is_cuda:
            self.row["peak_memory_mib"] = torch.cuda.max_memory_allocated() / 2**20

    def summarise_profile(self) -> None:
        """Count kernels of an update, and find the share of the steady time in which none runs."""
        kind = DeviceType.CUDA if self.is_cuda else DeviceType.CPU
        events = [event for event in self.profile.events() if event.device_type == kind]
        spans = sorted((e.time_range.start, e.time_range.end) for e in events if not e.is_user_annotation)
        busy, end = 0.0, 0.0
        for start, stop in spans:  # of several streams, and on a CPU one within the other
            busy += max(0.0, stop - max(start, end))
            end = max(end, stop)
        busy_ms = busy / 1000 / PROFILED_UPDATES
        self.row |= {"kernels": len(spans) / PROFILED_UPDATES, "busy_ms": busy_ms}
        self.row["idle_share"] = max(0.0, 1 - busy_ms / self.row["median_ms"])


def measure(args: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Train in this process up to the end of the measuring; the main process writes its row to `args.child`."""
    stopwatch = Stopwatch(args.device, args.updates)
    hook = register_optimizer_step_post_hook(stopwatch)

    def train() -> None:
        with contextlib.suppress(Measured):
            cli.main(["train", *arguments])

    growth = peak_growth(train)
    hook.remove()
    if "host_waits" in stopwatch.row and os.environ.get("RANK", "0") == "0":
        args.child.write_text(json.dumps({"peak_memory_mib": growth} | stopwatch.row), encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def measure_row(size: str, mode: str, num_processes: int, args: argparse.Namespace, further: Sequence[str]) -> dict:
    """Return a row of the result; with `error` where the training ended early."""
    row = {"size": size, "mode": mode, "processes": num_processes}
    print(f"{row} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as name:
        path, run = Path(name, "row.json"), Path(name, "run")
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_processes)]
        command = [sys.executable, *launch, __file__, "--child", str(path), "--updates", str(args.updates)]
        command += ["--device", args.device, "--data", args.data, "--recipe", f"{size}_en_de", "--output", str(run)]
        command += ["--set", MODES[mode], "--mixed_precision", "bf16", "--log_interval", str(args.updates), *further]
        environment = os.environ | {"ACCELERATE_USE_CPU": str(args.device == "cpu").lower()}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, encoding="utf-8", check=False)
        if not path.exists():
            return row | {"error": "\n".join(done.stderr.splitlines()[-5:])}
        log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        [steady] = [line for line in log if line["update"] == 2 * args.updates and "loss" in line]
        return row | json.loads(path.read_text(encoding="utf-8")) | steady


def format_row(row: dict) -> list[str]:
    place = [row["size"], row["mode"], str(row["processes"])]
    if "error" in row:
        return [*place, "failed", *[""] * (len(HEADER) - 4)]
    numbers = [f"{row['median_ms']:.1f}", f"{row['building_seconds']:.0f}", f"{row['host_ms']:.1f}"]
    numbers += [str(row["host_waits"]), f"{row['kernels']:,.0f}", f"{row['idle_share']:.0%}"]
    numbers += [f"{row['target_tokens_per_second']:,.0f}", f"{row['peak_memory_mib'] / 2**10:.1f}"]
    return [
        *place,
        *numbers,
        f"{NUM_UPDATES[row['size']] * row['mean_ms'] / 3.6e6:,.1f}",
        f"{row['loss'] or math.nan:.2f}",
    ]


HEADER = ["size", "mode", "processes", "ms per update", "building, s", "host ms", "host waits", "kernels", "idle"]
HEADER += ["target tokens/s", "memory, GiB", "hours", "loss"]


def main(argv: Sequence[str] | None = None) -> int:
    args, further = build_parser().parse_known_args(argv)
    if args.child is not None:
        output = ["--output", str(args.output), "--data", args.data]
        measure(args, [*output, *further])
        return 0
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here; --device cpu tries the program.")
    devices = torch.cuda.device_count() if args.device == "cuda" else 1
    processes = args.processes or sorted({1, devices})
    rows = [measure_row(*place, args, further) for place in product(args.sizes, args.modes, processes)]
    table = format_table(HEADER, [format_row(row) for row in rows])
    errors = [f"{row['size']}, {row['mode']}, {row['processes']}: {row['error']}" for row in rows if "error" in row]
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU, which shows that the program works"
    description = {"device": name} | describe_machine() | {"measured": f"{args.updates} updates, bfloat16 autocast"}
    report("Training", description, "\n\n".join([table, *errors]), rows, args.output)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
