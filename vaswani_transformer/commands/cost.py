"""Compute the training cost of a run in FLOP by two formulas: table 2's, and 6 x parameters x target tokens.

vaswani cost --run runs/base --device A100
vaswani cost --recipe base_en_de

The paper's formula is time x number of devices x FLOP per second of a device. It gives the work that the devices could
have done in that time. For a recipe, the command prints the parameters and the FLOP of each part of the model. The
command also prints the costs of the paper's models.
"""

import argparse
from pathlib import Path

from ..bounds import Number
from .arguments import add_recipe_options


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--run", type=Path, dest="run_folder", help="run folder")
    add_recipe_options(command, default="none")
    command.add_argument("--device", help="P100, A100 or H100, or the FLOP per second of another device")
    command.add_argument(
        "--devices", type=Number(1, 1_000_000), help="number of devices; default: one for each process of the run"
    )


def find_fault(args: argparse.Namespace) -> str | None:
    return "give either a --run or a --recipe." if (args.run_folder is None) == (args.recipe is None) else None


def run(args: argparse.Namespace) -> None:
    from ..training.cost import PAPER_FLOP

    (_print_run if args.recipe is None else _print_recipe)(args)
    for name, flop in PAPER_FLOP.items():
        print(f"{flop:.1e} FLOP  the paper's {name} model, English-German (table 2)")


def _print_recipe(args: argparse.Namespace) -> None:
    """Print the parameters and the FLOP of each part of the model of a recipe."""
    from ..training.cost import FLOP_PER_PARAMETER, count_parameters
    from ..training.recipes import build_config, load_recipe

    recipe = load_recipe(args.recipe, args.changes)
    counts = count_parameters(build_config(recipe.model, vocab_size=recipe.vocab_size))
    total = counts.total()
    tokens = recipe.num_updates * recipe.tokens_per_batch
    print(f"{'part':28}{'parameters':>14}{'share':>9}{'FLOP per target token':>25}")
    for part, count in (*counts.items(), ("sum", total)):
        print(f"{part:28}{count:14,}{count / total:9.1%}{FLOP_PER_PARAMETER * count:25.1e}")
    print(
        f"\nThe FLOP are those of a training, 6 x parameters, if sources have as many tokens as targets. Two products\n"
        f"of attention, Q K^T and weights V, have no parameters and are left out: 1 % of base at 35 tokens.\n\n"
        f"{FLOP_PER_PARAMETER * total * tokens:.1e} FLOP  6 x parameters x target tokens: {recipe.num_updates:,} "
        f"updates of at most {recipe.tokens_per_batch:,} tokens, padding included"
    )


def _print_run(args: argparse.Namespace) -> None:
    """Print the cost of a run by both formulas."""
    from ..training.cost import RunCost, compute_training_cost, find_rate

    cost = RunCost.read(args.run_folder)
    print(
        f"{args.run_folder}: updates {cost.updates:,} in {cost.seconds / 3600:,.2f} hours, "
        f"mixed precision {cost.mixed_precision}\n"
    )
    if args.device is None:
        print("the paper's formula needs the FLOP per second of a device: name a --device")
    else:
        rate = find_rate(args.device, mixed_precision=cost.mixed_precision)
        devices = args.devices or cost.num_processes
        flop = compute_training_cost(cost.seconds, devices, rate)
        print(f"{flop:.1e} FLOP  the paper's formula: {cost.seconds:,.0f} s x {devices} devices x {rate:.3g} FLOP/s")
    print(
        f"{cost.weight_flop:.1e} FLOP  6 x parameters x target tokens: {cost.num_parameters:,} parameters, "
        f"{cost.target_tokens:,.0f} target tokens in the log; right if sources have as many tokens as targets"
    )
