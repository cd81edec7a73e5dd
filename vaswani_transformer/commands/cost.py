import argparse

from ..training.cost import PAPER_FLOP, RunCost, compute_training_cost, find_rate


def run(args: argparse.Namespace) -> None:
    cost = RunCost.read(args.run_folder)
    print(
        f"{args.run_folder}: updates {cost.updates:,} in {cost.seconds / 3600:,.2f} hours, "
        f"mixed precision {cost.mixed_precision}\n"
    )
    if args.device is None:
        print("the paper's formula: name a --device")
    else:
        rate, devices = find_rate(args.device, mixed_precision=cost.mixed_precision), args.devices or cost.num_processes
        flop = compute_training_cost(cost.seconds, devices, rate)
        print(
            f"{flop:.1e} FLOP  the paper's formula: {cost.seconds:,.0f} s x {devices} {args.device} x {rate:.3g} FLOP/s"
        )
    print(
        f"{cost.weight_flop:.1e} FLOP  6 x parameters x tokens: {cost.num_parameters:,} parameters, "
        f"{cost.target_tokens:,.0f} target tokens by the log, as many source tokens"
    )
    for name, flop in PAPER_FLOP.items():
        print(f"{flop:.1e} FLOP  the paper's {name} model, English-German (table 2)")
