import argparse
from dataclasses import replace

import torch

from ..data.preparation import read_preparation
from ..evaluation.scores import compute_bleu
from ..files import RECIPE_FILE
from ..loading import find_languages
from ..training.interruption import Interrupted, destroy_group_at_exit
from ..training.loop import train
from ..training.recipes import Recipe, divide_widths, load_recipe
from ..training.setup import build_run
from ..translation.example import keep_example


def run(args: argparse.Namespace) -> None:
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    parts = build_run(
        _choose_recipe(args),
        args.data,
        args.output,
        init_from=args.init_from,
        seed=args.seed,
        accumulation_steps=args.accumulation_steps,
        mixed_precision=args.mixed_precision,
        log_interval=args.log_interval,
        score_dev=compute_bleu if args.dev_bleu else None,
    )
    try:
        train(parts, finish=keep_example)
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


def _choose_recipe(args: argparse.Namespace) -> Recipe:
    """Return the recipe that is named, or that of the data, with the changes that are given."""
    name = args.recipe
    if name is None:
        read_preparation(args.data)  # raises an error if it is no prepared data
        name = str(args.data / RECIPE_FILE)
    recipe = load_recipe(name, args.changes)
    if args.num_updates is not None:
        recipe = replace(recipe, num_updates=args.num_updates)
    return recipe if args.divide_widths is None else divide_widths(recipe, args.divide_widths)
