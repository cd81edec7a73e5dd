"""Train a recipe on prepared data (section 5). Repeat the command to continue after an interruption.

vaswani train --recipe multi30k_tiny --data data --output runs/multi30k

On several devices: accelerate launch -m vaswani_transformer train --data data --output runs/base
On two CPU cores, two processes are faster than two threads:
ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m vaswani_transformer train --threads 1 --data ... --output ...

After SIGTERM or Ctrl+C the command finishes its update (on a GPU, up to ten updates), writes a checkpoint and ends with
exit code 75. Repeat the command to continue the run, with or without --recipe and --set. To continue a finished run,
give a larger --num_updates.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..bounds import Number
from .arguments import add_recipe_options, output_folder, take_given

if TYPE_CHECKING:
    from ..training.recipes import Recipe

OF_RUN = ("init_from", "seed", "mixed_precision")  # A run that continues keeps these settings.


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--data", type=Path, required=True, help="folder written by `vaswani prepare`")
    add("--output", type=output_folder, required=True, help="folder of a new run or the run to continue")
    add_recipe_options(command, default="the recipe of the run if the run exists, else of the data")
    add("--init_from", metavar="MODEL", help="start from the weights of this model (fine-tuning)")
    add("--seed", type=Number(0, 2**63 - 1), help="default: as in the run if it exists, else 0")
    add("--num_updates", type=Number(1, 1_000_000_000), help="number of updates; default: as in the recipe")
    add(
        "--divide_widths",
        type=Number(1, 1_024),
        metavar="DIVISOR",
        help="divide d_model, d_ff, d_k and d_v of the recipe by this number",
    )
    add(
        "--accumulation_steps",
        type=Number(1, 10_000),
        help="number of micro-batches of an update in each process; more micro-batches need less memory",
    )
    add(
        "--mixed_precision",
        choices=("no", "bf16", "fp16"),
        help="default: as in the run if it exists, else as the launcher says, else chosen by device",
    )
    add("--log_interval", type=Number(1, 1_000_000_000), default=50, help="updates between two lines of the log")
    add(
        "--report_to",
        metavar="TRACKER",
        help="also send the log to this tracker: tensorboard, wandb, mlflow, trackio or another tracker of Accelerate",
    )
    add("--dev_bleu", action="store_true", help="log BLEU of the development set at each evaluation")
    add("--threads", type=Number(1, 1_024), help="CPU threads of each process")


def run(args: argparse.Namespace) -> None:
    import torch

    from ..data.preparation import TREES, read_prepared
    from ..evaluation.metrics import compute_bleu
    from ..runs import RECIPE_FILE
    from ..training.interruption import Interrupted, destroy_group_at_exit
    from ..training.loop import train
    from ..training.run_folder import read_settings
    from ..training.setup import build_run
    from ..translation.example import keep_example

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    # A command with --recipe or --divide_widths describes the whole run. Without both options, the command reads the
    # settings of an existing run.
    describes_run = args.recipe is not None or args.divide_widths is not None
    recorded = {} if describes_run else read_settings(args.output)
    settings = {name: value for name, value in recorded.items() if name in OF_RUN} | take_given(args, *OF_RUN)
    prepared = read_prepared(args.data)
    name = args.recipe or str((args.output if recorded else args.data) / RECIPE_FILE)
    parts = build_run(
        _change_recipe(name, args),
        prepared,
        args.output,
        **settings,
        accumulation_steps=args.accumulation_steps,
        log_interval=args.log_interval,
        report_to=args.report_to,
        score_dev=compute_bleu if args.dev_bleu else None,
    )
    try:
        train(parts, title=_describe_recipe(name, parts.recipe), finish=keep_example)
    except Interrupted:  # All processes have written the checkpoint, and stop together.
        destroy_group_at_exit()
        raise
    progress = parts.progress
    if progress.update < parts.recipe.num_updates:
        parts.log.print(
            f"ended after update {progress.update} of {parts.recipe.num_updates}. Evaluations in a row without a "
            f"better development loss: {progress.evaluations_without_gain}. To continue, give a larger patience: "
            f"--set patience={2 * progress.evaluations_without_gain}"
        )
    use = "parse" if prepared.description["target_language"] == TREES else "translate"
    parts.log.print(f"next: vaswani {use} --model {args.output} --input FILE")
    # After an error in one process, the group is not destroyed, because NCCL might then wait for the other processes.
    # The launcher ends these processes.
    destroy_group_at_exit()


def _change_recipe(name: str, args: argparse.Namespace) -> "Recipe":
    """Return the recipe `name` with the changes that `args` ask for.

    Raises:
        ValueError: if a change concerns a field that only `vaswani prepare` reads.
    """
    from ..training.recipes import OF_DATA, divide_widths, load_recipe

    for change in args.changes:
        if change.partition("=")[0] in OF_DATA:
            raise ValueError(
                f"--set {change} would have no effect here, because it is a setting of the data. Prepare the data "
                f"again, in another folder, with vaswani prepare --set {change}."
            )
    recipe = replace(load_recipe(name, args.changes), **take_given(args, "num_updates"))
    return recipe if args.divide_widths is None else divide_widths(recipe, args.divide_widths)


def _describe_recipe(name: str, recipe: "Recipe") -> str:
    """Return a line with the name of the recipe and its changes.

    If `name` is the path of a file, the line also names the most similar built-in recipe and lists the changes from it.
    """
    from ..files import find_changes
    from ..training.recipes import RECIPES, model_defaults

    defaults = {f"model.{field}": value for field, value in model_defaults().items()}

    def changes_from(named: str) -> list[str]:
        fields = RECIPES[named].to_dict() | {"compile": recipe.compile}
        return list(find_changes(fields, recipe.to_dict(), defaults=defaults))

    nearest = name if name in RECIPES else min(RECIPES, key=lambda named: len(changes_from(named)))
    return (
        f"recipe {name}{'' if name == nearest else f': {nearest}'} with changes: "
        f"{', '.join(changes_from(nearest)) or 'none'}"
    )
