import argparse
from dataclasses import replace

import torch

from ..evaluation import perplexity
from ..training.recipes import divide_widths, load_recipe
from ..training.trainer import Trainer


def run(args: argparse.Namespace) -> None:
    names = ("num_updates", "warmup_updates", "tokens_per_batch", "compile")
    changes = {name: getattr(args, name) for name in names}
    changes = {name: value for name, value in changes.items() if value is not None}
    recipe = replace(load_recipe(args.recipe), **changes)
    if args.divide_widths is not None:
        recipe = divide_widths(recipe, args.divide_widths)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    trainer = Trainer(
        recipe,
        args.data,
        args.output,
        seed=args.seed,
        accumulation_steps=args.accumulation_steps,
        mixed_precision=args.mixed_precision,
        log_interval=args.log_interval,
        score_dev=perplexity.compute_bleu if args.dev_bleu else None,
        change_processes=args.change_processes,
    )
    trainer.train()
