"""Compute the training cost of a run in FLOP by two formulas: table 2's, and 6 x parameters x target tokens.

vaswani cost --run runs/base --device A100

The paper's formula is time x number of devices x FLOP per second of a device. It gives the work that the devices could
have done in that time. The command also prints the costs of the paper's models.
"""

import argparse
from pathlib import Path

from ..bounds import Number


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--run", type=Path, required=True, dest="run_folder", help="run folder")
    command.add_argument("--device", help="P100, A100 or H100, or the FLOP per second of another device")
    command.add_argument(
        "--devices", type=Number(1, 1_000_000), help="number of devices; default: one for each process of the run"
    )


def run(args: argparse.Namespace) -> None:
    from ..training.cost import PAPER_FLOP, RunCost, compute_training_cost, find_rate

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
    for name, flop in PAPER_FLOP.items():
        print(f"{flop:.1e} FLOP  the paper's {name} model, English-German (table 2)")
