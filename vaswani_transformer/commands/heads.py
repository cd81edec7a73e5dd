"""Measure what each head attends to: the previous word, the same word, punctuation and </s>, words far away, ...

vaswani heads --model runs/base --source test.en --target test.de

The previous word, the same word and so on are relations between words. A head scores 0 in a relation if its attention
is spread evenly, and 1 if all of its attention follows the relation.
"""

import argparse

from .arguments import add_model, text_path

LEGEND = """\
Each line below has the name of a relation between words, its threshold, and where attention along this relation goes.
A head's share in a relation is the part of a word's attention that goes along the relation. The share is a mean over
all words that have the relation to some word: the first word, for example, has no previous word and is not counted. In
the relation "alignment", all words but punctuation count. Sub-words are merged into words.
{definitions}

score = (share - uniform) / (1 - uniform), where uniform is the share if attention is spread evenly over all visible
sub-words. So a score of 0 means even attention, and 1 means attention along this relation alone. An asterisk marks
scores that reach the threshold. "-" means that fewer than {fewest_places} words have the relation. The last line of a
table has the numbers of words over which the shares are means.
Layers and heads are counted from 1."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_model(command)
    command.add_argument("--source", type=text_path, required=True, help="UTF-8 text, one sentence per line")
    command.add_argument(
        "--target",
        type=text_path,
        help="translations of the source lines, in the same order; default: translations by the model",
    )


def run(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from ..attention import KINDS
    from ..attention.heads import FEWEST_PLACES, RELATIONS, measure_heads
    from ..attention.maps import MOST_TOKENS
    from ..data.corpus import read_parallel_files
    from ..data.lines import read_lines
    from ..loading import load_translator
    from ..translation.translator import translate

    model, tokenizer = load_translator(args.model)
    if args.target is None:
        sources = list(read_lines(args.source))
        pairs = zip(sources, translate(model, tokenizer, sources), strict=True)
    else:
        pairs = read_parallel_files(args.source, args.target)
    tally = measure_heads(model, tokenizer, tqdm(pairs, unit=" sentences", disable=None))
    scores = tally.scores()
    print(
        f"{args.model}, sentences of {args.source}: measured {tally.num_sentences:,}, left out {tally.num_left_out:,} "
        f"(empty or longer than {MOST_TOKENS} tokens)\n"
    )
    definitions = "\n".join(f"  {name:13}  {threshold}  {text}" for name, (threshold, text) in RELATIONS.items())
    print(LEGEND.format(definitions=definitions, fewest_places=FEWEST_PLACES))
    for kind, name in KINDS.items():
        table = _format_scores([score for score in scores if score.kind == kind])
        print(f"\n{name}: score by layer and head, with * if it reaches the threshold\n\n{table}")
    print(
        '\nTo draw a head: vaswani attention --model M --source "..." --kind cross --layer 3 --heads 2 --output FOLDER'
    )


def _format_scores(scores: list) -> str:
    """Return a table of `HeadScore` objects, with a row for each head and a column for each relation."""
    from tabulate import tabulate

    columns = {score.relation: score for score in scores}
    rows = {}  # (layer, head) -> cells
    for score in scores:
        # A head is named after a relation if its score reaches the threshold.
        cell = f"{'*' * score.is_named}{score.score:.2f}" if score.is_judged else "-"
        rows.setdefault((score.layer, score.head), []).append(cell)
    lines = [(f"layer {layer + 1} head {head + 1}", *cells) for (layer, head), cells in rows.items()]
    lines.append(("uniform share", *(f"{score.uniform:.2f}" for score in columns.values())))
    lines.append(("words", *(f"{score.places:,}" for score in columns.values())))
    alignment = {"colglobalalign": "right", "colalign": ["left"]}
    return tabulate(lines, ("", *columns), tablefmt="plain", disable_numparse=True, **alignment)
