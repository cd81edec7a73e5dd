"""Count what one update, or one search, asks of a GPU, on a machine without one.

python scripts/pretended_gpu/count.py update --recipe base_en_de
python scripts/pretended_gpu/count.py search --sentences 64 --beams 4 --steps 40
python scripts/pretended_gpu/count.py shapes
python scripts/pretended_gpu/count.py host_time
"""

import argparse
import itertools
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from counts import BACKWARD, Counts
from device import PretendedGpu
from host_time import PARTS, measure_update
from shapes import count_shapes, draw_lengths
from work import build_model, build_search, build_trainer, find_update, run_update

from vaswani_transformer.training.recipes import RECIPES

NUM_CAPTURING = 2  # searches that capture steps: the first finds out how much memory they need
LIMIT_OFFSET = 2  # tokens by which a translation may be longer than its source, so that sentences leave one by one


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    update = commands.add_parser("update", help="operations, waits and copies of one update")
    search = commands.add_parser("search", help="the same of a step of a beam search, 6 + 6 layers")
    shapes = commands.add_parser("shapes", help="distinct shapes of an epoch, and their share of real tokens")
    host_time = commands.add_parser("host_time", help="processor time of one update on the CPU, by part")
    for command in (update, host_time):
        command.add_argument("--recipe", choices=tuple(RECIPES), default="base_en_de", help="default: %(default)s")
        command.add_argument("--mixed_precision", choices=("no", "bf16"), default="bf16", help="default: %(default)s")
    for command in (update, search):
        command.add_argument("--lines", type=int, default=25, help="of the project to print; default: %(default)s")
    update.add_argument("--unpadded", action="store_true", help="of a batch of sentences of one length")
    search.add_argument("--sentences", type=int, default=64, help="default: %(default)s")
    search.add_argument("--beams", type=int, default=4, help="default: %(default)s")
    search.add_argument("--steps", type=int, default=40, help="at most; default: %(default)s")
    shapes.add_argument("--updates", type=int, help="the first of the epoch; default: all")
    shapes.add_argument("--pairs", type=int, default=4_500_000, help="of the corpus; default: %(default)s")
    shapes.add_argument("--tokens_per_batch", type=int, default=25_000, help="default: %(default)s")
    host_time.add_argument("--updates", type=int, default=10, help="whose median is taken; default: %(default)s")
    return parser


def count_update(recipe_name: str, *, mixed_precision: str = "bf16", is_padded: bool = True) -> Counts:
    """The counts of one update of a recipe, behind a first one, which makes Adam's averages."""
    recipe = RECIPES[recipe_name]
    with tempfile.TemporaryDirectory() as folder, PretendedGpu() as gpu:
        trainer = build_trainer(recipe_name, Path(folder), device="gpu:0", mixed_precision=mixed_precision)
        update = find_update(trainer, is_padded=is_padded)
        run_update(trainer, update, recipe)
        with gpu.counting() as counts:
            run_update(trainer, update, recipe)
    return counts


def count_search(*, num_sentences: int, num_beams: int, num_steps: int, ends: bool) -> tuple[Counts, Counts, int]:
    """The counts of a search up to its first step, those of all later steps, and their number.

    Args:
        num_steps: of the search, at most.
        ends: whether sentences are done at different steps and leave; else all go on to the end.

    Raises:
        RuntimeError: if the CPU finds other tokens.
    """
    options = {"num_sentences": num_sentences, "num_beams": num_beams}
    if ends:
        options["max_length_offset"] = LIMIT_OFFSET
    model = build_model(ends=ends)
    expected = build_search(model, "cpu", **options)(max_new_tokens=num_steps)
    with PretendedGpu() as gpu:
        search = build_search(model, "gpu", **options)
        for _ in range(NUM_CAPTURING):
            search(max_new_tokens=num_steps)
        with gpu.counting() as start:
            search(max_new_tokens=1)
        with gpu.counting() as whole:
            found = search(max_new_tokens=num_steps)
        if not torch.equal(found.cpu(), expected):
            raise RuntimeError("the search on the pretended GPU found other tokens than the CPU's")
    return start, whole.minus(start), found.shape[1] - 2  # the start token, and the first step


def print_summary(columns: dict[str, tuple[Counts, int]]) -> None:
    """The numbers of each column's counts, per step where they are of several."""
    print(f"{'':32}" + "".join(f"{title:>22}" for title in columns))
    for name in Counts().summary():
        numbers = (counts.summary()[name] / num_steps for counts, num_steps in columns.values())
        print(f"{name:32}" + "".join(f"{number:22.4g}" for number in numbers))


def print_lines(counts: Counts, num_lines: int, *, num_steps: int = 1) -> None:
    """The lines of the project with most operations, and all that make the host wait or mix devices."""
    forward, backward, casts = Counter(), Counter(), Counter()
    for (name, line), number in counts.operations.items():
        own = line.removeprefix(BACKWARD)
        (forward if own == line else backward)[own] += number
        casts[own] += number * (name == "_to_copy")
    print(f"\n{'forward':>10}{'backward':>10}{'casts':>10}  operations{' per step' * (num_steps > 1)}, by line")
    for line, _ in (forward + backward).most_common(num_lines):
        print("".join(f"{events[line] / num_steps:10.4g}" for events in (forward, backward, casts)) + f"  {line}")
    for title, events in (("waits", counts.waits), ("mixed devices", counts.mixed)):
        print(f"\n{title}{' per step' * (num_steps > 1)}: {'none' * (not +events)}")
        for (name, line), number in (+events).most_common():
            print(f"{number / num_steps:10.4g}  {name}  {line}")


def print_update(args: argparse.Namespace) -> None:
    counts = count_update(args.recipe, mixed_precision=args.mixed_precision, is_padded=not args.unpadded)
    print_summary({"one update": (counts, 1)})
    print_lines(counts, args.lines)


def print_search(args: argparse.Namespace) -> None:
    numbers = {"num_sentences": args.sentences, "num_beams": args.beams, "num_steps": args.steps}
    start, going, steps = count_search(**numbers, ends=False)
    _, leaving, leaving_steps = count_search(**numbers, ends=True)
    columns = {"start": (start, 1), "step, all go on": (going, steps)}
    print_summary(columns | {"step, some leave": (leaving, leaving_steps)})
    print("the tokens are the CPU's")
    print("\n\nall go on")
    print_lines(going, args.lines, num_steps=steps)
    print("\n\nsome leave")
    print_lines(leaving, args.lines, num_steps=leaving_steps)


def print_shapes(args: argparse.Namespace) -> None:
    lengths = draw_lengths(args.pairs)
    for bucketed, num_processes in itertools.product((False, True), (1, 8)):
        options = {"num_updates": args.updates, "num_processes": num_processes, "bucketed": bucketed}
        found = count_shapes(*lengths, tokens_per_batch=args.tokens_per_batch, **options)
        print(f"{'in buckets' if bucketed else 'exact'}, {num_processes} processes, {found.updates} updates: ", end="")
        print(f"{found.shapes} shapes on the process with most, {found.real_share:.1%} real tokens")


def print_host_time(args: argparse.Namespace) -> None:
    milliseconds = measure_update(args.recipe, mixed_precision=args.mixed_precision, num_updates=args.updates)
    for part in PARTS:
        print(f"{part:12}{milliseconds[part]:8.2f} ms of processor time, median of {args.updates}")


COMMANDS = {"update": print_update, "search": print_search, "shapes": print_shapes, "host_time": print_host_time}


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    COMMANDS[args.command](args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
