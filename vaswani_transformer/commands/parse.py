import argparse
import re
import sys
from collections.abc import Sequence

from tqdm import tqdm

from ..data.lines import decode_lines, read_lines
from ..parsing.bracket_f1 import BracketScore, compare
from ..parsing.parser import load_parser, split_words
from ..parsing.trees import format_tree, read_trees, strip
from .arguments import check_output, open_output


def run(args: argparse.Namespace) -> None:
    check_output(args.output, inputs=[args.input, args.gold])
    gold = None if args.gold is None else [tree for tree in map(strip, read_trees(args.gold)) if tree is not None]
    if gold == []:
        raise ValueError(f"{args.gold} holds no tree; there is nothing to score.")
    if gold is not None:
        sentences = [" ".join(tree.words) for tree in gold]
    else:
        lines = decode_lines(sys.stdin.buffer, name="standard input") if args.input is None else read_lines(args.input)
        sentences = list(lines)
        _warn_of_unsplit_words(sentences)
    names = ("num_beams", "length_penalty", "tokens_per_batch")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    parser = load_parser(args.model, is_constrained=not args.unconstrained, **options)
    with open_output(args.output) as output:  # before the search, which a name that cannot be written would waste
        with tqdm(total=len(sentences), unit=" sentences", file=sys.stderr, disable=None) as bar:
            trees = parser(sentences, on_batch=bar.update)
        if gold is not None:
            trees = [tree._replace(leaves=of_gold.leaves) for tree, of_gold in zip(trees, gold, strict=True)]
        for tree in trees:
            output.write(("" if tree is None else format_tree(tree)) + "\n")
    print(f"{parser.num_repaired} of {len(sentences)} outputs repaired", file=sys.stderr)
    if gold is not None:
        score = sum(map(compare, gold, trees), BracketScore())
        print(score.summary(), file=sys.stderr if args.output is None else sys.stdout)


def _warn_of_unsplit_words(sentences: Sequence[str]) -> None:
    """Say which words hold punctuation that treebanks write as a word; a full stop counts at the end of a sentence."""
    found = []
    for words in map(split_words, sentences):
        found += [word for word in words if re.search(r"\w[,;:!?]$|-[LR]RB-.|.-[LR]RB-", word)]
        found += [word for word in words[-1:] if re.search(r"\w\.$", word)]
    if found:
        print(
            f"vaswani parse: words with punctuation in them: {len(found)}, such as {' '.join(found[:5])} ... "
            f"Separate it by spaces.",
            file=sys.stderr,
        )
