"""Align the words of sentences with the words of given translations, by the attention of the model.

vaswani align --model runs/base --source test.en --target test.de --output test.align

For each pair of lines the output has a line of links `i-j`: source word i and target word j, counted from 0, as in
fast_align. Spaces and tabs separate words.
"""

import argparse
import sys
from pathlib import Path

from .arguments import add_model, add_text_pairs, open_output, output_stream, text_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_model(command)
    add_text_pairs(command)
    command.add_argument("--output", type=output_stream, help="file for the links; default: standard output")
    command.add_argument(
        "--gold", type=text_path, help="file of links made by hand: also print the alignment error rate"
    )


def run(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from ..attention.alignment import align, format_links, score_links
    from ..data.corpus import read_parallel_files
    from ..loading import load_translator

    gold = None if args.gold is None else _read_gold(args.gold)
    pairs = list(read_parallel_files(args.source, args.target))
    if gold is not None and len(gold) != len(pairs):
        raise ValueError(
            f"{args.gold} has {len(gold)} lines, but {args.source} has {len(pairs)}: the numbers must be equal."
        )
    model, tokenizer = load_translator(args.model)
    found = []
    with open_output(args.output) as file:
        for links in align(model, tokenizer, tqdm(pairs, unit=" sentences", disable=None)):
            file.write(f"{format_links(links)}\n")
            found.append(links)
    if gold is not None:
        rates = "alignment error rate {:.3f}  precision {:.3f}  recall {:.3f}".format(*score_links(found, gold))
        print(rates, file=sys.stderr if args.output is None else sys.stdout)


def _read_gold(path: Path) -> list[set]:
    """Return the links of each line of the file `path`."""
    from ..attention.alignment import parse_links
    from ..data.lines import read_lines

    gold = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            gold.append(parse_links(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return gold
