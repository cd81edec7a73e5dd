import argparse
import sys

from tqdm import tqdm

from .. import loading
from ..data.corpus import read_parallel_files
from ..evaluation.likelihood import score_pairs


def run(args: argparse.Namespace) -> None:
    pairs = read_parallel_files(args.source, args.target)
    model, tokenizer = loading.load_translator(args.model)
    options = {"tokens_per_batch": args.tokens_per_batch, "length_penalty": args.length_penalty}
    found = score_pairs(model, tokenizer, pairs, **options)
    for log_prob, length, score in tqdm(found, unit=" sentences", file=sys.stderr, disable=None):
        print(f"{log_prob:.6f}\t{length}\t{score:.6f}")
