"""Kill a training run again and again, and compare its result with an undisturbed run, to the last bit.

    python scripts/kill_test.py --kills 25

The script trains a small model with dropout on the built-in corpus, first without kills. The second run is killed with
SIGKILL at random moments, and started again after each kill. Every other kill is aimed at the writing or removal of a
checkpoint. The script prints one line for each kill: what the run was doing, from which checkpoint it continues, and
whether a checkpoint is damaged. The last lines count what the run was doing at the kills, and compare the weights and
logs of the two runs. The exit status is 0 if weights and logs are equal, no checkpoint was damaged, and no run ended
before its kill.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from vaswani_transformer.data.phrasebook.pairs import generate_pairs
from vaswani_transformer.data.preparation import Corpus, prepare, read_prepared
from vaswani_transformer.runs import PARTIAL_PREFIX, check_checkpoint, resumable_checkpoints
from vaswani_transformer.training.loop import train
from vaswani_transformer.training.recipes import RECIPES
from vaswani_transformer.training.setup import build_run

# An epoch has about 60 updates, so that several kills fall into one epoch.
RECIPE = replace(
    RECIPES["phrasebook"],
    model={"d_model": 64, "d_ff": 128, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1},
    tokens_per_batch=1_000,
    num_updates=150,
    checkpoint_interval=(5, "updates"),
)
TIMES = ("seconds", "target_tokens_per_second")  # fields of the log that may differ between the two runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25, help="how often to kill the run; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments; default: %(default)s")
    parser.add_argument("--child", type=Path, nargs=2, metavar=("DATA", "RUN"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        data, run = args.child
        train(build_run(RECIPE, read_prepared(data), run, log_interval=2))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return compare_runs(Path(folder), num_kills=args.kills, rng=random.Random(args.seed))


def compare_runs(folder: Path, *, num_kills: int, rng: random.Random) -> int:
    """Train once without kills and once with kills, print how the results compare, and return the exit status."""
    data = folder / "data"
    undisturbed = folder / "undisturbed"
    killed = folder / "killed"
    prepare(
        [Corpus(lambda: generate_pairs(split="train", num_pairs=4_000))],
        lambda: generate_pairs(split="dev", num_pairs=50),
        data,
        vocab_size=500,
    )
    started = time.perf_counter()
    start_child(data, undisturbed).wait()
    length = time.perf_counter() - started
    print(f"undisturbed run: {length:.1f} s")
    strikes = [strike(data, killed, number, num_kills, length, rng) for number in range(1, num_kills + 1)]
    if start_child(data, killed).wait():
        print("after the last kill the run was started again, and FAILED")
        return 1
    places = Counter(place for place, _ in strikes)
    print("moments of the kills: " + ", ".join(f"{count} {place}" for place, count in places.most_common()))
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (undisturbed, killed)]
    logs = [read_log(run) for run in (undisturbed, killed)]
    print(f"weights after {num_kills} kills: {'bitwise equal' if weights[0] == weights[1] else 'DIFFERENT'}")
    print(f"log of {len(logs[0])} lines: {'equal' if logs[0] == logs[1] else 'DIFFERENT'}")
    return int(any(fault for _, fault in strikes) or weights[0] != weights[1] or logs[0] != logs[1])


def start_child(data: Path, run: Path) -> subprocess.Popen:
    command = [sys.executable, __file__, "--child", str(data), str(run)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def strike(data: Path, run: Path, number: int, num_kills: int, length: float, rng: random.Random) -> tuple[str, bool]:
    """Start the run, kill it once, and print what it leaves behind.

    Returns:
        what the run was doing, and whether there was a fault: a damaged checkpoint, or an end before the kill.
    """
    checkpoints = run / "checkpoints"
    left_over = find_partial(checkpoints)
    child = start_child(data, run)
    updates_before = count_updates(run)
    while count_updates(run) <= updates_before and child.poll() is None:  # wait until it has begun to train
        time.sleep(0.002)
    # Each wait is a small share of the duration of the run, so that the run does not end before the last kill.
    time.sleep(rng.uniform(0, length / (2 * num_kills)))
    if number % 2:
        while child.poll() is None:
            if find_partial(checkpoints) - left_over:
                break
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.02))
    child.send_signal(signal.SIGKILL)
    status = child.wait()
    partial = sorted(name for name, _ in find_partial(checkpoints) - left_over)
    kept = resumable_checkpoints(checkpoints)
    fault = ""
    try:
        for path in kept:
            check_checkpoint(path)
    except Exception as error:  # whatever the error is, the checkpoint is damaged
        fault = f"  BROKEN: {path.name}: {error}"
    if status != -signal.SIGKILL:
        fault += f"  the run had ended before the kill, with status {status}"
    newest = kept[-1].name if kept else "none yet"
    place = "between saves"
    of_what = ""
    if partial:
        name = partial[0].removeprefix(PARTIAL_PREFIX)
        is_old = bool(kept) and name < newest  # old checkpoints are removed, new ones are written
        place = "in the removal" if is_old else "in the writing"
        of_what = f" of {name}"
    updates = count_updates(run)
    print(f"kill {number:2}: at update {updates}, {place}{of_what}; continues from {newest}{fault}", flush=True)
    return place, bool(fault)


def find_partial(checkpoints: Path) -> set[tuple[str, int]]:
    """Return the name and time of change of each folder whose writing or removal has begun, but not ended."""
    found = set()
    for path in checkpoints.glob(f"{PARTIAL_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # the run has renamed or removed the folder in the meantime
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def count_updates(run: Path) -> int:
    lines = read_log(run)
    return lines[-1]["update"] if lines else 0


def read_log(run: Path) -> list[dict]:
    """Return the lines of the log without the fields `TIMES`. A line that is not complete is left out."""
    path = run / "log.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


if __name__ == "__main__":
    sys.exit(main())
