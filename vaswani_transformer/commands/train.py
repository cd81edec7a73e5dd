"""`vaswani train`."""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from ..evaluation import perplexity
from ..training.recipes import RECIPES, divide_widths, load_recipe
from ..training.trainer import Trainer
from .arguments import add_command, positive_int


def add(commands) -> None:
    command = add_command(commands, "train", run)
    command.add_argument("--data", type=Path, required=True, help="folder written by `vaswani prepare`")
    command.add_argument("--output", type=Path, required=True, help="run folder; an interrupted run goes on")
    command.add_argument("--recipe", default="base_en_de", help=", ".join(RECIPES))
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--num_updates", type=positive_int, help="instead of the recipe's")
    command.add_argument("--warmup_updates", type=positive_int, help="instead of the recipe's")
    command.add_argument("--tokens_per_batch", type=positive_int, help="instead of the recipe's")
    text = "train a narrower model: d_model, d_ff, d_k and d_v of the recipe, each divided by this"
    command.add_argument("--divide_widths", type=positive_int, metavar="DIVISOR", help=text)
    text = "parts of an update on each process, for less memory"
    command.add_argument("--accumulation_steps", type=positive_int, help=text)
    command.add_argument("--mixed_precision", choices=("no", "bf16", "fp16"), help="instead of the launcher's")
    text = "run the stacks through torch.compile: the first update then takes minutes"
    command.add_argument("--compile", action="store_true", default=None, help=text)
    command.add_argument("--log_interval", type=positive_int, default=50, help="updates between two lines of the log")
    command.add_argument("--dev_bleu", action="store_true", help="translate the development set at each evaluation")
    command.add_argument("--threads", type=positive_int, help="CPU threads of each process")
    command.add_argument(
        "--change_processes", action="store_true", help="go on with a run that another number of processes began"
    )


def run(args: argparse.Namespace) -> None:
    """Train a recipe on prepared data (section 5); start it again to go on after an interruption.

    vaswani train --recipe multi30k_tiny --data data --output runs/multi30k

    On several devices: accelerate launch -m vaswani_transformer train --data data --output runs/base
    After SIGTERM the update under way is finished and saved; the exit code is then 75: start the same command again.
    Where the package tensorboard is installed, OUTPUT/tensorboard has what OUTPUT/log.jsonl has.
    """
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
