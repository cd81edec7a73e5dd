"""Score existing translations with a model: log P, and the score of beam search (section 6.1).

vaswani score --model runs/base --source test.en --target test.de

For each pair of lines, the command prints a line with three columns, separated by tabs: log P, the number of target
tokens (</s> included), and the score by which beam search ranks translations, which is log P / length penalty.
"""

import argparse

from ..bounds import SEARCH_BOUNDS, Number
from .arguments import add_model, add_text_pairs


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_model(command)
    add_text_pairs(command)
    command.add_argument(
        "--length_penalty",
        type=SEARCH_BOUNDS["length_penalty"],
        help="alpha of the length penalty; default: as in the model",
    )
    command.add_argument(
        "--tokens_per_batch",
        type=Number(1, 10_000_000),
        default=8_192,
        help="limit of tokens per batch, with padding, on the source side and on the target side",
    )


def run(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from ..data.corpus import read_parallel_files
    from ..evaluation.likelihood import score_pairs
    from ..loading import load_translator

    pairs = read_parallel_files(args.source, args.target)
    model, tokenizer = load_translator(args.model)
    found = score_pairs(
        model, tokenizer, pairs, tokens_per_batch=args.tokens_per_batch, length_penalty=args.length_penalty
    )
    for log_prob, length, score in tqdm(found, unit=" sentences", disable=None):
        print(f"{log_prob:.6f}\t{length}\t{score:.6f}")
