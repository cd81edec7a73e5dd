import argparse

from ..training.cost import PAPER_TABLE, RunCost, compute_training_cost, find_rate
from .tables import format_table


def run(args: argparse.Namespace) -> None:
    cost = RunCost.read(args.run_folder)
    print(
        f"{args.run_folder}: {cost.updates:,} updates in {cost.seconds / 3600:,.2f} hours, "
        f"mixed precision {cost.mixed_precision}\n"
    )
    if args.device is None:
        print("the paper's formula: name a --device")
    else:
        rate = find_rate(args.device, mixed_precision=cost.mixed_precision)
        if args.devices is None and args.device.lower().endswith("-core"):
            raise ValueError(f"a process may use several of {args.device}: say how many cores there were by --devices.")
        devices = args.devices or cost.num_processes
        flop = compute_training_cost(cost.seconds, devices, rate)
        print(
            f"{flop:.1e} FLOP  the paper's formula: {cost.seconds:,.0f} s x {devices} {args.device} x {rate:.3g} FLOP/s"
        )
    print(
        f"{cost.weight_flop:.1e} FLOP  6 x parameters x tokens: {cost.num_parameters:,} parameters, "
        f"{cost.target_tokens:,.0f} target tokens by the log, as many source tokens"
    )
    if args.data is None:
        print("attention included: name the --data of the run")
    else:
        print(f"{cost.count(args.data):.1e} FLOP  counted: 6 x all multiplications of section 3, attention included")
    header = ("the paper's table 2", "BLEU En-De", "BLEU En-Fr", "FLOP En-De", "FLOP En-Fr")
    print(f"\n{format_table(header, [_format_row(*row) for row in PAPER_TABLE])}")


def _format_row(model: str, *numbers: float | None) -> tuple[str, ...]:
    formats = ("{:.2f}", "{:.2f}", "{:.1e}", "{:.1e}")
    cells = ("" if number is None else text.format(number) for text, number in zip(formats, numbers, strict=True))
    return (model, *cells)
