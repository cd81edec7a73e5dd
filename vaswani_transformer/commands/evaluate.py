"""`vaswani evaluate`."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from .. import evaluation
from ..translation import translate
from .arguments import (
    add_command,
    add_languages,
    add_search_options,
    open_output,
    open_reader,
    positive_int,
    search_options,
)


def add(commands) -> None:
    command = add_command(commands, "evaluate", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--test", nargs="+", required=True, help="source and reference, as for `vaswani prepare`")
    add_languages(command)
    text = "of a Hub dataset, of a folder of .parquet or of the phrasebook: test, or validation"
    command.add_argument("--split", default="test", help=text)
    text = "sentences of the phrasebook to score"
    command.add_argument("--num_pairs", type=positive_int, default=1_000, help=text)
    command.add_argument("--tokenize", default="13a", help='sacreBLEU tokenizer; "none" for tokenised text')
    command.add_argument("--lowercase", action="store_true", help="compare without case")
    command.add_argument("--translations", type=Path, help="write the translations here")
    add_search_options(command)


def run(args: argparse.Namespace) -> None:
    """Translate a test set and print BLEU with its signature, perplexity and the search settings.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de
    """
    model, tokenizer = evaluation.load_translator(args.model)
    pairs = list(open_reader(args.test, args, split=args.split, num_pairs=args.num_pairs, streaming=True)())
    if not pairs:
        raise ValueError(f"{' and '.join(args.test)} hold no sentence; there is nothing to score.")
    sources, references = zip(*pairs, strict=True)
    options = search_options(args)
    with tqdm(total=len(pairs), unit=" sentences", file=sys.stderr, disable=None) as bar:
        hypotheses = translate(
            model, tokenizer, sources, tokens_per_batch=args.tokens_per_batch, on_batch=bar.update, **options
        )
    if args.translations is not None:
        with open_output(args.translations) as output:
            output.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    score = evaluation.score_bleu(hypotheses, references, tokenize=args.tokenize, lowercase=args.lowercase)
    print(f"BLEU {score['bleu']:.2f}  {score['signature']}")
    print(f"perplexity {evaluation.compute_perplexity(model, tokenizer, pairs):.3f} per sub-word, no label smoothing")
    print(f"search {evaluation.describe_search(model, **options)}  model {args.model}")
