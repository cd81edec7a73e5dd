"""`vaswani score`."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from .. import loading
from ..data.corpus import read_parallel_files
from ..model.scoring_vaswani import score_pairs
from .arguments import add_command, positive_int


def add(commands) -> None:
    command = add_command(commands, "score", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--source", type=Path, required=True, help="UTF-8 text, one sentence a line")
    command.add_argument("--target", type=Path, required=True, help="their translations, one a line, same order")
    command.add_argument("--length_penalty", type=float, help="alpha of the GNMT penalty; the model's own by default")
    command.add_argument("--coverage_penalty", type=float, help="beta of the GNMT penalty; the model's own by default")
    command.add_argument(
        "--tokens_per_batch", type=positive_int, default=8_192, help="padded tokens of a batch, a side"
    )


def run(args: argparse.Namespace) -> None:
    """Rate given translations: log P, tokens with </s>, and the score of section 6.1, tab-separated, a line a pair.

    vaswani score --model runs/base --source test.en --target test.de

    An empty line is the sentence that consists of </s> alone, and is rated like any other.
    """
    pairs = read_parallel_files(args.source, args.target)
    model, tokenizer = loading.load_translator(args.model)
    options = {"length_penalty": args.length_penalty, "coverage_penalty": args.coverage_penalty}
    found = score_pairs(model, tokenizer, pairs, tokens_per_batch=args.tokens_per_batch, **options)
    for log_prob, length, score in tqdm(found, unit=" sentences", file=sys.stderr, disable=None):
        print(f"{log_prob:.6f}\t{length}\t{score:.6f}")
