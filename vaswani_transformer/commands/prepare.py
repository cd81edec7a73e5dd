import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from ..data.corpus import Pair, describe_source
from ..data.filtering import FilterCounts, PairFilter
from ..data.preparation import prepare
from ..loading import load_tokenizer
from ..parsing.linearisation import read_pairs
from ..parsing.vocabulary import learn_vocabulary
from ..resuming.files import write_json
from ..training.recipes import load_recipe
from ..training.run_folder import RECIPE_FILE
from .arguments import describe_inputs, open_reader

Reader = Callable[[], Iterable[Pair]]


def run(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in ("vocab_size", "max_length_ratio")}
    recipe = load_recipe(args.recipe or "base_en_de", args.changes)
    recipe = replace(recipe, **{name: value for name, value in given.items() if value is not None})
    pair_filter = PairFilter(
        max_length_ratio=recipe.max_length_ratio,
        drop_duplicates=args.drop_duplicates,
        drop_identical=args.drop_identical,
    )
    if args.copy_words and args.task != "parsing":
        raise ValueError("--copy_words is about trees: add --task parsing, or leave it out.")
    read_train, read_dev, inputs = (_open_trees if args.task == "parsing" else _open_text)(args)
    tokenizer = None if args.tokenizer is None else load_tokenizer(args.tokenizer)
    if args.task == "parsing" and tokenizer is None:
        tokenizer = learn_vocabulary(read_train, vocab_size=recipe.vocab_size, subword_model=recipe.subword_model)
    with tqdm(unit=" pairs", file=sys.stderr, disable=None) as bar:
        summary = prepare(
            read_train,
            read_dev,
            args.output,
            vocab_size=recipe.vocab_size,
            subword_model=recipe.subword_model,
            max_length=recipe.max_length,
            pair_filter=pair_filter,
            tokenizer=tokenizer,
            source_language=args.source_language,
            target_language="trees" if args.task == "parsing" else args.target_language,
            inputs=inputs,
            log=bar.write,
            on_pairs=bar.update,
        )
    write_json(args.output / RECIPE_FILE, {"recipe": recipe.to_dict()})  # what `vaswani train` takes by default
    for name in ("train", "dev"):
        counts = summary[name]
        tally = FilterCounts(**{field: counts[field] for field in FilterCounts.__dataclass_fields__})
        print(f"{name}: {tally.summary()}")
        print(
            f"{name}: {counts['pairs']:,} pairs of {counts['source_tokens']:,} source and "
            f"{counts['target_tokens']:,} target tokens; {counts['over_max_length']:,} over {recipe.max_length} tokens"
        )
    print(f"vocabulary of {summary['vocab_size']:,} and token ids in {args.output}")


def _open_text(args: argparse.Namespace) -> tuple[Reader, Reader, dict]:
    """Return readers of the two sets of parallel text, and a description of both for the fingerprint."""
    train = {"split": "train", "num_pairs": args.num_pairs}
    dev = {"split": "validation", "num_pairs": min(500, args.num_pairs)}
    inputs = {"train": describe_inputs(args.train, **train), "dev": describe_inputs(args.dev, **dev)}
    return open_reader(args.train, args, **train), open_reader(args.dev, args, **dev), inputs


def _open_trees(args: argparse.Namespace) -> tuple[Reader, Reader, dict]:
    """Return the same for any number of bracketed files."""

    def read(names: list[str]) -> Iterable[Pair]:
        return chain.from_iterable([read_pairs(Path(name), copy_words=args.copy_words) for name in names])

    files = {"train": describe_source(args.train, split="train"), "dev": describe_source(args.dev, split="dev")}
    return partial(read, args.train), partial(read, args.dev), files | {"copy_words": args.copy_words}
