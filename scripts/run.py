"""Reproduce a run of runs.toml: prepare its text, train, average, translate and score.

    python scripts/run.py base_en_de
    python scripts/run.py multi30k_raw --folder FOLDER --seed 1
    python scripts/run.py table3_reduced --folder FOLDER/tatoeba_en_de --rows base C1 C4

Start the program in the root of the repository. The same command continues an interrupted run. Options that are not
listed below go to `vaswani train`. For example, --accumulation_steps 4 saves memory. The number of processes, which
--launch chooses, changes only the time and the random numbers of dropout.
"""

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path

RUNS = tomllib.loads(Path(__file__).with_name("runs.toml").read_text(encoding="utf-8"))
VASWANI = [sys.executable, "-m", "vaswani_transformer"]


def fill(text: str, languages: Sequence[str] = ("",), **places: str) -> list[str]:
    """Return the words of `text`, a value of runs.toml, with its placeholders filled in.

    A word with {language} becomes one word for each language. A pattern with * becomes the first file that fits it.
    """
    words = []
    for word in shlex.split(text):
        filled = [word.format(language=language, **places) for language in languages]
        words += [min(glob(pattern), default=pattern) for pattern in dict.fromkeys(filled)]
    return words


def plan(args: argparse.Namespace, further: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands of a run one by one.

    Execute each command before you ask for the next one: later commands depend on files that earlier ones write.
    """
    table = RUNS[args.name]
    run = args.output or f"runs/{args.name}"
    folder = args.folder or table.get("folder", "")
    places = {"folder": folder, "run": run, "languages": table.get("languages", [""])}
    for target, command in table.get("before", {}).items():
        [output] = fill(target, **places)
        if not Path(output).exists():
            line = command.format(folder=shlex.quote(folder), run=run, output=f"{output}.partial")
            yield ["bash", "-euc", f"mkdir -p {run}; {line}; mv {output}.partial {output}"]
    yield [*VASWANI, "prepare", "--output", f"{run}/data", *fill(table["prepare"], **places)]
    rows = table.get("rows", {"": ""})
    for row in args.rows or rows:
        places["run"] = f"{run}/{row}" if row else run
        scores = Path(run, row, "dev_scores.json")
        if row and scores.exists():
            print(f"row {row} is finished and is skipped. To train it further or score it again, delete {scores}.")
            continue
        launch = shlex.split(args.launch or table.get("launch", "")) or VASWANI
        settings = fill(f"{table.get('train', '')} {rows[row]}", **places)
        yield [*launch, "train", "--data", f"{run}/data", "--output", places["run"], *settings, *further]
        places["best"] = find_best(places["run"])
        for command in table["scores"]:
            yield [*VASWANI, *fill(command, **places)]


def find_best(run: str) -> str:
    """Return the checkpoint of `run` with the lowest perplexity on the development set.

    Before the first evaluation, return a pattern that fits every checkpoint.
    """
    log = Path(f"{run}/log.jsonl")
    lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    perplexities = {line["update"]: line["dev_perplexity"] for line in lines if "dev_perplexity" in line}
    step = f"{min(perplexities, key=perplexities.get):08d}" if perplexities else "*"
    return f"{run}/checkpoints/step-{step}"


def execute(command: Sequence[str]) -> int:
    """Run a command to its end and return its status."""
    process = subprocess.Popen(command)
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the command gets Ctrl-C too, and a training saves before it ends
            return process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--folder", help="folder with the texts that runs.toml names")
    parser.add_argument("--output", help="run folder; default: runs/NAME")
    parser.add_argument("--launch", help="command that starts the processes of the training")
    parser.add_argument("--rows", nargs="+", help="rows of table 3 to train; default: all")
    parser.add_argument("--dry_run", action="store_true", help="only print the commands")
    args, further = parser.parse_known_args(argv)
    if not (args.folder or "folder" in RUNS[args.name]):
        parser.error(
            f"the run {args.name} needs --folder, the folder with its texts. scripts/runs.toml names the files."
        )
    rows = RUNS[args.name].get("rows", {})
    if not rows.keys() >= {*(args.rows or ())}:
        parser.error(
            f"the run {args.name} has these rows: {' '.join(rows) or 'none'}, got --rows {' '.join(args.rows)}."
        )
    for command in plan(args, further):
        print("+", shlex.join(command).replace(shlex.join(VASWANI), "vaswani"), flush=True)
        if not args.dry_run and (status := execute(command)):
            return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
