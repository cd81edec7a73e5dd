"""Measure the speed of `vaswani train` on one GPU and on all GPUs: base and big, eager and compiled.

    python scripts/gpu_report.py --data data --output report.json
    python scripts/gpu_report.py --data data --device cpu --updates 4 --sizes base --modes eager --divide_widths 16

--data is a folder that `vaswani prepare --recipe base_en_de` has written. Arguments that are not listed below go to
`vaswani train`. Each row of the result is a separate training in bfloat16 autocast, with twice as many updates as
--updates says. The times are read from the log of the training. The second half of the updates is the steady state.
"building" is how much longer the first half takes than the second, because the first half includes compilation and
other work that is done once for each shape. "memory" is the peak of what PyTorch allocates. "hours" is how long the
paper's number of updates would take. If a row fails, for example from lack of memory, the report says so and goes on
with the next row. Each row is printed when it is measured. `benchmark_training.py --device cuda` compares the training
of our model with the training of MarianMTModel.

For a machine without a network, download wheels elsewhere by the first command, and install them by the second:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --constraint constraints.txt --dest wheels \\
        transformers datasets dill multiprocess
    python3 -m pip install --no-index --no-deps --no-build-isolation --upgrade --target site wheels/*.whl .
    PYTHONPATH=site python3 scripts/gpu_report.py --data data --output report.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from benchmark_common import describe_machine, format_rows, report

from vaswani_transformer import cli

NUM_UPDATES = {"base": 100_000, "big": 300_000}  # the numbers of updates in the paper
MODES = {"eager": "compile=false", "compiled": "compile=true"}
COLUMNS = {
    "size": "{size}",
    "mode": "{mode}",
    "processes": "{processes}",
    "ms per update": "{milliseconds:.1f}",
    "building, s": "{building_seconds:.0f}",
    "target tokens/s": "{target_tokens_per_second:,.0f}",
    "memory, GiB": "{memory_gib:.1f}",
    "hours": "{hours:.1f}",
    "loss": "{loss!s:.5}",
}


def train(arguments: Sequence[str]) -> int:
    """Run `vaswani train` in a process that torchrun started, and return the exit status.

    Rank 0 prints the peak of the memory that PyTorch has allocated on its GPU, in GiB.
    """
    status = cli.main(["train", *arguments])
    if os.environ["RANK"] == "0":
        print(torch.cuda.max_memory_allocated() / 2**30)
    return status


def measure_row(size: str, mode: str, num_processes: int, args: argparse.Namespace, further: Sequence[str]) -> dict:
    """Return a row of the result. If the training fails, the field `error` of the row has the last lines of stderr."""
    row = {"size": size, "mode": mode, "processes": num_processes}
    with tempfile.TemporaryDirectory() as run:
        launch = f"-m torch.distributed.run --standalone --nproc_per_node {num_processes}"
        options = (
            f"--recipe {size}_en_de --set {MODES[mode]} --mixed_precision bf16 --num_updates {2 * args.updates} "
            f"--log_interval {args.updates}"
        )
        command = [sys.executable, *launch.split(), __file__, "train", "--data", args.data, "--output", run]
        command += [*options.split(), *further]
        environment = os.environ | {"ACCELERATE_USE_CPU": str(args.device == "cpu").lower()}
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            return row | {"error": "\n".join(done.stderr.splitlines()[-5:])}
        log = [json.loads(line) for line in Path(run, "log.jsonl").read_text(encoding="utf-8").splitlines()]
    first, second = [line for line in log if "loss" in line]
    seconds = second["seconds"] - first["seconds"]
    figures = {
        "milliseconds": 1000 * seconds / args.updates,
        "building_seconds": first["seconds"] - seconds,
        "memory_gib": float(done.stdout),
        "hours": NUM_UPDATES[size] * seconds / args.updates / 3600,
    }
    return row | second | figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that `vaswani prepare` has written")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--sizes", nargs="+", choices=tuple(NUM_UPDATES), default=list(NUM_UPDATES))
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=list(MODES))
    parser.add_argument("--updates", type=int, default=100, help="updates of the steady state; default: %(default)s")
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        help="numbers of processes to measure, each process with one device; default: 1 and the number of devices",
    )
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    args, further = parser.parse_known_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("This machine has no CUDA device. Use --device cpu to try the program without one.")
    processes = args.processes or sorted({1, torch.cuda.device_count() or 1})
    rows = []
    for place in product(args.sizes, args.modes, processes):
        rows.append(measure_row(*place, args, further))
        print(rows[-1], file=sys.stderr, flush=True)  # so that the rows so far are not lost if the report is stopped
    failed = [row for row in rows if "error" in row]
    errors = [f"{row['size']}, {row['mode']}, {row['processes']}: {row['error']}" for row in failed]
    table = format_rows([row for row in rows if row not in failed], COLUMNS)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU, only to show that the program works"
    description = {"device": name} | describe_machine() | {"measured": f"{args.updates} updates, bfloat16 autocast"}
    report("Training", description, "\n\n".join([table, *errors]), rows, args.output)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(train(sys.argv[2:]) if sys.argv[1:2] == ["train"] else main())
