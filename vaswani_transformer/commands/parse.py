"""Parse sentences into constituency trees (section 6.3), one tree for each line.

vaswani parse --model runs/parsing --input sentences.txt --output trees.mrg
echo "The dog barks ." | vaswani parse --model runs/parsing

Separate words by spaces. A punctuation mark is a word, too. An empty line stays empty. A line of more than 1,000
sub-words is an error. An output that is no tree over the words of its sentence is repaired. At the end, the command
prints how many outputs were repaired. The output has XX for every part-of-speech tag. With --gold, the command removes
traces and function tags from the gold trees, parses their words, copies their part-of-speech tags to the output, and
computes F1 as EVALB does.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence

from ..bounds import Number
from .arguments import add_beam_options, add_model, open_output, output_stream, take_given, text_path, text_stream


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_model(command)
    texts = command.add_mutually_exclusive_group()
    texts.add_argument("--input", type=text_stream, help="UTF-8 text, one sentence per line; default: standard input")
    texts.add_argument("--gold", type=text_path, help="file of bracketed trees: parse its words, and print the F1")
    command.add_argument("--output", type=output_stream, help="one tree per line; default: standard output")
    command.add_argument(
        "--unconstrained",
        action="store_true",
        help="as in the paper, search among all outputs instead of well-formed trees only",
    )
    search = command.add_argument_group("search (section 6.3); default: the settings of the model")
    add_beam_options(search)
    search.add_argument(
        "--tokens_per_batch",
        type=Number(1, 10_000_000),
        default=1_000,
        help="limit of source tokens per batch, with padding",
    )


def run(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from ..data.lines import decode_lines, read_lines
    from ..parsing.bracket_f1 import BracketScore, compare
    from ..parsing.parser import load_parser, split_words
    from ..parsing.trees import format_tree, read_trees, strip

    gold = []
    if args.gold is not None:
        gold = [tree for tree in map(strip, read_trees(args.gold)) if tree is not None]
        if not gold:
            raise ValueError(f"{args.gold} holds no tree: name a file of bracketed trees.")
        sentences = [" ".join(tree.words) for tree in gold]
    else:
        lines = decode_lines(sys.stdin.buffer, name="standard input") if args.input is None else read_lines(args.input)
        sentences = list(lines)
        _warn_of_unsplit_words(map(split_words, sentences))
    options = take_given(args, "num_beams", "length_penalty", "tokens_per_batch")
    parser = load_parser(args.model, is_constrained=not args.unconstrained, **options)
    with open_output(args.output) as output:  # Opened before the search: a wrong path fails at once.
        with tqdm(total=len(sentences), unit=" sentences", disable=None) as bar:
            trees = parser(sentences, on_batch=bar.update)
        if gold:
            trees = [tree._replace(leaves=gold_tree.leaves) for tree, gold_tree in zip(trees, gold, strict=True)]
        for tree in trees:
            output.write(("" if tree is None else format_tree(tree)) + "\n")
    print(f"{parser.num_repaired} of {len(sentences)} outputs repaired", file=sys.stderr)
    if gold:
        score = sum(map(compare, gold, trees), BracketScore())
        print(score.summary(), file=sys.stderr if args.output is None else sys.stdout)


def _warn_of_unsplit_words(sentences: Iterable[Sequence[str]]) -> None:
    """Warn on standard error if words still hold punctuation, which treebanks separate from words.

    A full stop counts only in the last word of a sentence, because elsewhere it may belong to an abbreviation.
    """
    found = []
    for words in sentences:
        found += [word for word in words if re.search(r"\w[,;:!?]$|-[LR]RB-.|.-[LR]RB-", word)]
        found += [word for word in words[-1:] if re.search(r"\w\.$", word)]
    if found:
        print(
            f"vaswani parse: words with punctuation in them: {len(found)}, such as {' '.join(found[:5])} ... "
            f"Separate punctuation by spaces.",
            file=sys.stderr,
        )
