"""Learn a vocabulary and turn parallel text into token ids (section 5.1).

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani prepare --train a.en a.de --train b.csv --weights 1 4 --dev dev.en dev.de --output data

Files may be compressed (.gz).
To use the built-in corpus of made-up sentences: --train phrasebook --dev phrasebook
To train a parser: --task parsing --recipe parsing_wsj --train train.mrg --dev dev.mrg
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from ..bounds import Number
from .arguments import add_column_options, add_recipe_options, corpus_name, output_folder, take_given

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..data.preparation import Corpus


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--train",
        type=corpus_name,
        nargs="+",
        action="append",
        required=True,
        help="source and target text file; or one .csv, .tsv, .jsonl or .parquet file, a folder of .parquet files, or "
        "a Hub dataset (wmt/wmt14:de-en). Repeat --train for further corpora",
    )
    add(
        "--weights",
        type=Number(1, 1_000),
        nargs="+",
        help="for each --train, how many times its pairs appear in an epoch; default: 1",
    )
    add("--dev", type=corpus_name, nargs="+", required=True, help="development set, in any form that --train takes")
    add("--output", type=output_folder, required=True, help="new folder for tokenizer and token ids")
    add("--source_language", help="default: the ending of the source file (train.en), or en")
    add("--target_language", help="default: the ending of the target file (train.de), or de")
    add_column_options(command)
    add_recipe_options(command, default="base_en_de")
    vocabulary = command.add_mutually_exclusive_group()
    vocabulary.add_argument("--vocab_size", type=Number(1, 1_000_000), help="size of the shared vocabulary to learn")
    vocabulary.add_argument(
        "--keep_vocabulary",
        metavar="MODEL",
        help="use this vocabulary instead of learning one: model folder, run folder, prepared data, Hub id, a "
        "tokenizer.json, or a .model file of SentencePiece",
    )
    add("--num_pairs", type=Number(1, 100_000_000), default=30_000, help="with phrasebook: number of training pairs")
    parsing = command.add_argument_group("parsing, section 6.3")
    parsing.add_argument(
        "--task",
        choices=("translation", "parsing"),
        default="translation",
        help="kind of the training data: parallel text, or trees for parsing; default: translation",
    )
    parsing.add_argument("--copy_words", action="store_true", help="write words into the trees (default: XX)")
    filters = command.add_argument_group("filters; the command prints how many pairs they drop")
    filters.add_argument(
        "--max_length_ratio",
        type=Number(1.0, 1_000.0),
        help="drop a pair if one side has more than this many times as many words as the other side",
    )
    filters.add_argument("--drop_duplicates", action="store_true", help="keep only the first of equal pairs")


def find_fault(args: argparse.Namespace) -> str | None:
    if args.copy_words and args.task != "parsing":
        return "--copy_words is an option for trees: add --task parsing, or leave --copy_words out."
    if args.weights and len(args.weights) != len(args.train):
        return f"--weights: expected one number for each --train ({len(args.train)} in all), got {len(args.weights)}."
    return None


def run(args: argparse.Namespace) -> None:
    from ..data.filtering import summarise
    from ..data.preparation import TREES, prepare, read_all
    from ..data.sources import find_languages
    from ..parsing.vocabulary import learn_vocabulary
    from ..training.recipes import load_recipe

    recipe = load_recipe(args.recipe or "base_en_de", args.changes)
    recipe = replace(recipe, **take_given(args, "vocab_size", "max_length_ratio"))
    source, target = find_languages(args.train[0]) or ("en", "de")
    languages = (args.source_language or source, args.target_language or target)
    is_parser = args.task == "parsing"
    learning = {"vocab_size": recipe.vocab_size, "subword_model": recipe.subword_model}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hub-", dir=args.output.parent) as cache:
        corpora, read_dev, describe = _open_trees(args) if is_parser else _open_text(args, languages, Path(cache))
        inputs = describe()
        _refuse_shared_files(inputs)
        tokenizer = None
        if args.keep_vocabulary is not None:
            texts = islice(chain.from_iterable(read_all(corpora)), 100)
            tokenizer = _load_vocabulary(args, texts)
        elif is_parser:
            tokenizer = learn_vocabulary(read_all(corpora), **learning)
        summary = prepare(
            corpora,
            read_dev,
            args.output,
            **learning,
            max_length=recipe.max_length,
            max_length_ratio=recipe.max_length_ratio,
            drop_duplicates=args.drop_duplicates,
            tokenizer=tokenizer,
            source_language=languages[0],
            target_language=TREES if is_parser else languages[1],
            inputs=inputs,
            describe=describe,
            recipe=recipe.to_dict(),
            log=print,
        )
    for name in ("train", "dev"):
        counts = summary[name]
        tokens = f"{counts['source_tokens']:,} source and {counts['target_tokens']:,} target tokens"
        print(f"{name}: {summarise(counts)}, kept {counts['pairs']:,} pairs with {tokens}")
    languages = f"{summary['source_language']} to {summary['target_language']}"
    is_chosen = args.recipe or args.changes or args.keep_vocabulary
    if summary["train"]["pairs"] <= 1_000_000 and not (is_chosen or is_parser):
        print(
            "The default recipe, base_en_de, suits millions of pairs. Prepare again, in another folder, with --recipe "
            "multi30k_tiny for up to 100,000 pairs, or --recipe everyday_en_de for up to 1,000,000."
        )
    print(f"{languages}: vocabulary of {summary['vocab_size']:,} and token ids in {args.output}")


def _load_vocabulary(args: argparse.Namespace, texts: Iterable[str]) -> "PreTrainedTokenizerFast":
    """Load the tokenizer that --keep_vocabulary names.

    The name is a model folder, a run folder, prepared data, a Hub id or a file. See `read_vocabulary` for `texts`.

    Raises:
        OSError: if the tokenizer does not exist.
        ValueError: if the tokenizer has no tokenizer.json, if it lacks what parsing needs, or if a folder has a .model
            file but no tokenizer.
    """
    from ..data.given_vocabulary import read_vocabulary
    from ..loading import load_tokenizer
    from ..parsing.vocabulary import check_vocabulary
    from ..runs import TOKENIZER_FILES, find_model_folder

    folder = find_model_folder(Path(args.keep_vocabulary))
    models = sorted(folder.glob("*.model"))
    if models and not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ValueError(f"{folder} has no tokenizer.json: name its SentencePiece file, --keep_vocabulary {models[0]}.")
    if folder.is_file():
        tokenizer = read_vocabulary(folder, texts)
    else:
        tokenizer = load_tokenizer(folder if folder.exists() else args.keep_vocabulary)
    if not tokenizer.is_fast:
        raise ValueError(
            f"--keep_vocabulary needs a tokenizer with a tokenizer.json, but {folder} has a "
            f"{type(tokenizer).__name__} without one. To fine-tune that model, use transformers' Seq2SeqTrainer."
        )
    if args.task == "parsing":
        check_vocabulary(tokenizer, copy_words=args.copy_words)
    return tokenizer


def _open_text(
    args: argparse.Namespace, languages: tuple[str, str], cache: Path
) -> "tuple[list[Corpus], Callable, Callable]":
    """Return the training corpora, a reader of the development set, and a function that describes both.

    By the description, `prepare` notices that the text has changed.
    """
    from ..data.preparation import Corpus
    from ..data.sources import Source

    columns = [args.source_column, args.target_column]
    source = partial(Source, languages=languages, columns=columns, cache=cache)
    train = [source(names, split="train", num_pairs=args.num_pairs) for names in args.train]
    dev = source(args.dev, split="validation", num_pairs=min(500, args.num_pairs))

    def describe() -> dict:
        return {"train": [text.describe() for text in train], "dev": dev.describe(), "columns": columns}

    corpora = [Corpus(text.read, weight) for text, weight in zip_longest(train, args.weights or (), fillvalue=1)]
    return corpora, dev.read, describe


def _open_trees(args: argparse.Namespace) -> "tuple[list[Corpus], Callable, Callable]":
    """Return what `_open_text` returns, but for trees. Each --train is a corpus of one or more files of trees."""
    from ..data.corpus import describe_source
    from ..data.preparation import Corpus
    from ..parsing.linearisation import read_pairs

    def read(names: list[str]) -> Iterable[tuple[str, str]]:
        return chain.from_iterable([read_pairs(Path(name), copy_words=args.copy_words) for name in names])

    def describe() -> dict:
        train = [describe_source(names, split="train") for names in args.train]
        return {"train": train, "dev": describe_source(args.dev, split="dev"), "copy_words": args.copy_words}

    weighted = zip_longest(args.train, args.weights or (), fillvalue=1)
    corpora = [Corpus(partial(read, names), weight) for names, weight in weighted]
    return corpora, partial(read, args.dev), describe


def _refuse_shared_files(inputs: Mapping[str, list]) -> None:
    """Raise a ValueError if a file of the development set has the same content as a file of the training set."""
    training = {source.get("sha256"): source for corpus in inputs["train"] for source in corpus}
    for source in inputs["dev"]:
        if "sha256" in source and (train_file := training.get(source["sha256"])):
            raise ValueError(
                f"the development set must not be part of the training set, but {source['file']} of --dev has the same "
                f"content as {train_file['file']} of --train. Set pairs aside for --dev alone."
            )
