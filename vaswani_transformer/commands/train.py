import argparse
from dataclasses import replace

import torch

from ..data.preparation import read_preparation
from ..evaluation.metrics import compute_bleu
from ..files import find_changes
from ..loading import find_languages
from ..runs import RECIPE_FILE
from ..training.interruption import Interrupted, destroy_group_at_exit
from ..training.loop import train
from ..training.recipes import (
    OF_DATA,
    RECIPES,
    Recipe,
    divide_widths,
    load_recipe,
    model_defaults,
)
from ..training.run_folder import read_settings
from ..training.setup import build_run
from ..translation.example import keep_example


def run(args: argparse.Namespace) -> None:
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    recorded = read_settings(args.output)
    is_same = args.recipe is None and args.divide_widths is None  # these would change the recipe of the run
    settings = {name: getattr(args, name) for name in ("init_from", "seed", "mixed_precision")}
    if recorded and is_same:
        settings = {name: recorded[name] if value is None else value for name, value in settings.items()}
    name = _name_recipe(args, has_run=bool(recorded) and is_same)
    parts = build_run(
        _change_recipe(name, args),
        args.data,
        args.output,
        **settings | {"seed": settings["seed"] or 0},
        accumulation_steps=args.accumulation_steps,
        log_interval=args.log_interval,
        score_dev=compute_bleu if args.dev_bleu else None,
    )
    try:
        train(parts, title=_describe_recipe(name, parts.recipe), finish=keep_example)
    except Interrupted:  # all processes stop together, when the checkpoint is written
        destroy_group_at_exit()
        raise
    done, recipe = parts.progress.update, parts.recipe
    if done < recipe.num_updates:
        parts.log.print(
            f"ended after update {done} of {recipe.num_updates}: {recipe.patience} evaluations in a row without a "
            f"better development loss. To continue, give a larger patience: --set patience={2 * recipe.patience}"
        )
    config = parts.accelerator.unwrap_model(parts.model).config
    is_parser = find_languages(vars(config))[1] == "trees"
    parts.log.print(f"next: vaswani {'parse' if is_parser else 'translate'} --model {args.output} --input FILE")
    # Not after an error in one process: the end of NCCL may wait for the others, which the launcher then ends.
    destroy_group_at_exit()


def _name_recipe(args: argparse.Namespace, *, has_run: bool) -> str:
    """Return the name of the recipe, or of the file that holds it: of the run that goes on, or else of the data."""
    if args.recipe is not None:
        return args.recipe
    read_preparation(args.data)  # raises an error if it is no prepared data
    return str((args.output if has_run else args.data) / RECIPE_FILE)


def _change_recipe(name: str, args: argparse.Namespace) -> Recipe:
    """Return the recipe `name` with the changes that are given.

    Raises:
        ValueError: for a field that only `vaswani prepare` reads.
    """
    for change in args.changes:
        if change.partition("=")[0] in OF_DATA:
            raise ValueError(
                f"{change} would have no effect: it is a setting of the data. Prepare them again, in another folder, "
                f"with vaswani prepare --set {change}."
            )
    recipe = load_recipe(name, args.changes)
    if args.num_updates is not None:
        recipe = replace(recipe, num_updates=args.num_updates)
    return recipe if args.divide_widths is None else divide_widths(recipe, args.divide_widths)


def _describe_recipe(name: str, recipe: Recipe) -> str:
    """Return a line with the changes from the recipe `name`, or from the base model if that is a file."""
    named = name if name in RECIPES else "base_en_de"
    defaults = {f"model.{field}": value for field, value in model_defaults().items()}
    plain = RECIPES[named].to_dict() | {"compile": recipe.compile}
    changes = ", ".join(find_changes(plain, recipe.to_dict(), defaults=defaults)) or "none"
    return f"recipe {name}{f': {named}' if name != named else ''} with changes: {changes}"
