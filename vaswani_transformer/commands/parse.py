"""`vaswani parse`."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from ..data.corpus import read_lines
from ..parsing.bracket_f1 import BracketScore, compare
from ..parsing.parser import Parser, load_parser
from ..parsing.trees import format_tree, pretty, read_trees, strip
from .arguments import add_command, open_output, positive_int


def add(commands) -> None:
    command = add_command(commands, "parse", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    texts = command.add_mutually_exclusive_group(required=True)
    texts.add_argument("--input", type=Path, help="UTF-8 text, one sentence a line, words separated by spaces")
    texts.add_argument("--gold", type=Path, help="bracketed trees: parse their words, and print the bracket F1")
    command.add_argument("--output", type=Path, help="one tree a line, same order; standard output if not given")
    command.add_argument("--pretty", action="store_true", help="a tree over several lines, and an empty line after it")
    text = "search among all outputs as the paper did, and repair what is no tree over the sentence"
    command.add_argument("--unconstrained", action="store_true", help=text)
    search = command.add_argument_group("search, section 6.3; the model's own settings where not given")
    search.add_argument("--num_beams", type=positive_int)
    search.add_argument("--length_penalty", type=float, help="alpha of the GNMT penalty")
    search.add_argument("--tokens_per_batch", type=positive_int, default=1_000, help="padded source tokens of a batch")


def run(args: argparse.Namespace) -> None:
    """Parse sentences into constituency trees (section 6.3); one tree for one line.

    vaswani parse --model runs/parsing --input sentences.txt --output trees.mrg

    An empty line stays empty, and one of more than 1,000 sub-words is refused. The words are the input's; parentheses
    become -LRB- and -RRB-, and tags are XX, or with --gold those of the gold trees. F1 is EVALB's with the parameters
    COLLINS.prm; traces and function tags of the gold trees are left out before.
    """
    gold = None if args.gold is None else [tree for tree in map(strip, read_trees(args.gold)) if tree is not None]
    sentences = list(read_lines(args.input)) if gold is None else [" ".join(tree.words) for tree in gold]
    names = ("num_beams", "length_penalty", "tokens_per_batch")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    parser = load_parser(args.model, is_constrained=not args.unconstrained, **options)
    with tqdm(total=len(sentences), unit=" sentences", file=sys.stderr, disable=None) as bar:
        trees = parser(sentences, on_batch=bar.update)
    if gold is not None:
        trees = [tree._replace(leaves=of_gold.leaves) for tree, of_gold in zip(trees, gold, strict=True)]
    to_text = pretty if args.pretty else format_tree
    with open_output(args.output) as output:
        for tree in trees:
            output.write(("" if tree is None else to_text(tree)) + ("\n\n" if args.pretty else "\n"))
    print(_describe_repairs(parser, len(sentences)), file=sys.stderr)
    if gold is not None:
        score = sum(map(compare, gold, trees), BracketScore())
        print(score.summary(), file=sys.stderr if args.output is None else sys.stdout)


def _describe_repairs(parser: Parser, num_sentences: int) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(parser.repairs.items()))
    return f"{parser.num_repaired} of {num_sentences} outputs repaired" + (f": {kinds}" if kinds else "")
