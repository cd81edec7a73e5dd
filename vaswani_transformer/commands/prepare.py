import argparse
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from ..data.corpus import Pair, describe_source
from ..data.filtering import summarise
from ..data.preparation import Corpus, prepare, read_all
from ..files import write_json
from ..loading import load_tokenizer
from ..parsing.linearisation import read_pairs
from ..parsing.vocabulary import check_vocabulary, learn_vocabulary
from ..runs import RECIPE_FILE, find_model_folder
from ..training.recipes import load_recipe
from .arguments import describe_inputs, open_reader

Reader = Callable[[], Iterable[Pair]]


def run(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in ("vocab_size", "max_length_ratio")}
    recipe = load_recipe(args.recipe or "base_en_de", args.changes)
    recipe = replace(recipe, **{name: value for name, value in given.items() if value is not None})
    source, target = _find_languages(args.train[0])
    args.source_language, args.target_language = args.source_language or source, args.target_language or target
    weights = args.weights or [1] * len(args.train)
    learning = {"vocab_size": recipe.vocab_size, "subword_model": recipe.subword_model}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hub-", dir=args.output.parent) as cache:
        readers, read_dev, inputs = _open_trees(args) if args.task == "parsing" else _open_text(args, Path(cache))
        _refuse_shared_files(inputs)
        corpora = [Corpus(read, weight) for read, weight in zip(readers, weights, strict=True)]
        tokenizer = None
        if args.keep_vocabulary is not None:
            tokenizer = _load_vocabulary(args)
        elif args.task == "parsing":
            tokenizer = learn_vocabulary(partial(read_all, corpora), **learning)
        summary = prepare(
            corpora,
            read_dev,
            args.output,
            **learning,
            max_length=recipe.max_length,
            max_length_ratio=recipe.max_length_ratio,
            drop_duplicates=args.drop_duplicates,
            tokenizer=tokenizer,
            source_language=args.source_language,
            target_language="trees" if args.task == "parsing" else args.target_language,
            inputs=inputs,
            log=print,
        )
    # What `vaswani train` takes by default.
    write_json(args.output / RECIPE_FILE, {"recipe": recipe.to_dict()})
    for name in ("train", "dev"):
        counts = summary[name]
        tokens = f"{counts['source_tokens']:,} source and {counts['target_tokens']:,} target tokens"
        print(f"{name}: {summarise(counts)}, kept {counts['pairs']:,} of {tokens}")
    languages = f"{summary['source_language']} to {summary['target_language']}"
    print(f"{languages}: vocabulary of {summary['vocab_size']:,} and token ids in {args.output}")


def _load_vocabulary(args: argparse.Namespace) -> PreTrainedTokenizerFast:
    """Load the tokenizer in a model folder, a run folder or prepared data, or of a model on the Hub.

    Raises:
        OSError: if there is none.
        ValueError: if the tokenizer has no tokenizer.json, or lacks what parsing needs.
    """
    folder = find_model_folder(Path(args.keep_vocabulary))
    tokenizer = load_tokenizer(folder if folder.exists() else args.keep_vocabulary)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            f"--keep_vocabulary: the tokenizer of {folder} is a {type(tokenizer).__name__}, and only one with a "
            f"tokenizer.json prepares data. Fine-tune that model with transformers' Seq2SeqTrainer."
        )
    if args.task == "parsing":
        check_vocabulary(tokenizer, copy_words=args.copy_words)
    return tokenizer


def _find_languages(names: Sequence[str]) -> tuple[str, str]:
    """Return the languages that two text files are named after, as train.en and train.de.gz are, or else en and de."""
    endings = [Path(name.removesuffix(".gz")).suffix.removeprefix(".") for name in names]
    is_told = len(set(endings)) == 2 and all(re.fullmatch("[a-z]{2}", ending) for ending in endings)  # ISO 639-1
    return (endings[0], endings[1]) if is_told else ("en", "de")


def _open_text(args: argparse.Namespace, cache: Path) -> tuple[list[Reader], Reader, dict]:
    """Return readers of the training corpora and of the development set, and a description for the fingerprint."""
    train = {"split": "train", "num_pairs": args.num_pairs}
    dev = {"split": "validation", "num_pairs": min(500, args.num_pairs)}
    inputs = {
        "train": [describe_inputs(names, **train) for names in args.train],
        "dev": describe_inputs(args.dev, **dev),
        "columns": [args.source_column, args.target_column],
    }
    readers = [open_reader(names, args, **train, cache=cache) for names in args.train]
    return readers, open_reader(args.dev, args, **dev, cache=cache), inputs


def _open_trees(args: argparse.Namespace) -> tuple[list[Reader], Reader, dict]:
    """Return the same as `_open_text` for parsing; a corpus is any number of files of trees."""

    def read(names: list[str]) -> Iterable[Pair]:
        return chain.from_iterable([read_pairs(Path(name), copy_words=args.copy_words) for name in names])

    train = [describe_source(names, split="train") for names in args.train]
    inputs = {"train": train, "dev": describe_source(args.dev, split="dev"), "copy_words": args.copy_words}
    return [partial(read, names) for names in args.train], partial(read, args.dev), inputs


def _refuse_shared_files(inputs: Mapping[str, list]) -> None:
    """Raise a ValueError if a file of the development set is among those of training, by what the files hold."""
    training = {source.get("sha256"): source for corpus in inputs["train"] for source in corpus}
    for source in inputs["dev"]:
        if "sha256" in source and (same := training.get(source["sha256"])):
            raise ValueError(
                f"the development set must not be part of the training set, but {source['file']} of --dev holds what "
                f"{same['file']} of --train holds. Set pairs aside that are in --dev only."
            )
