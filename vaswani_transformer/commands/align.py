import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from .. import loading
from ..attention.alignment import Links, align, format_links, parse_links, score_links
from ..data.corpus import read_parallel_files
from ..data.lines import read_lines
from .arguments import check_output, open_output


def run(args: argparse.Namespace) -> None:
    check_output(args.output, inputs=[args.source, args.target, args.gold])
    gold = None if args.gold is None else _read_gold(args.gold)
    pairs = list(read_parallel_files(args.source, args.target))
    if gold is not None and len(gold) != len(pairs):
        raise ValueError(f"the numbers of lines differ: {args.gold} has {len(gold)}, {args.source} has {len(pairs)}.")
    model, tokenizer = loading.load_translator(args.model)
    found = []
    with open_output(args.output) as file:
        for links in align(model, tokenizer, tqdm(pairs, unit=" sentences", file=sys.stderr, disable=None)):
            file.write(f"{format_links(links)}\n")
            found.append(links)
    if gold is not None:
        rates = "alignment error rate {:.3f}  precision {:.3f}  recall {:.3f}".format(*score_links(found, gold))
        print(rates, file=sys.stderr if args.output is None else sys.stdout)


def _read_gold(path: Path) -> list[Links]:
    gold = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            gold.append(parse_links(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return gold
