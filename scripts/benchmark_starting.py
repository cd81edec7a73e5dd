"""Processor time until a program has started, the least of several runs.

python scripts/benchmark_starting.py
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence

PYTHON = (sys.executable, "-c")
VASWANI = (*PYTHON, "import vaswani_cli; vaswani_cli.main()")
PROGRAMS = {
    "import transformers": (*PYTHON, "import transformers"),
    "import vaswani_transformer": (*PYTHON, "import vaswani_transformer"),
    "from vaswani_transformer import VaswaniConfig": (*PYTHON, "from vaswani_transformer import VaswaniConfig"),
    "from vaswani_transformer import pipeline": (*PYTHON, "from vaswani_transformer import pipeline"),
    "vaswani --help": (*VASWANI, "--help"),
    "vaswani train --help": (*VASWANI, "train", "--help"),
}


def measure(command: tuple[str, ...]) -> float:
    """Return the seconds of processor time, user and system, that a process of `command` takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args(argv).repeats
    for name, command in PROGRAMS.items():
        print(f"{min(measure(command) for _ in range(repeats)):6.2f} s  {name}", flush=True)


if __name__ == "__main__":
    main()
