import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from ..data.corpus import Pair, describe_source, find_languages_by_ending
from ..data.filtering import PairFilter, summarise
from ..data.preparation import CACHE_FOLDER, Corpus, prepare, read_all, work_folder
from ..files import find_model_folder, write_json
from ..loading import load_tokenizer
from ..parsing.linearisation import read_pairs
from ..parsing.vocabulary import check_vocabulary, count_missing_labels, learn_vocabulary
from ..training.recipes import load_recipe
from ..training.run_folder import RECIPE_FILE
from .arguments import describe_inputs, open_reader

Reader = Callable[[], Iterable[Pair]]


def run(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in ("vocab_size", "max_length_ratio")}
    recipe = load_recipe(args.recipe or "base_en_de", args.changes)
    recipe = replace(recipe, **{name: value for name, value in given.items() if value is not None})
    source, target = find_languages_by_ending(args.train[0]) or ("en", "de")
    args.source_language, args.target_language = args.source_language or source, args.target_language or target
    weights = args.weights or [1] * len(args.train)
    readers, read_dev, inputs = (_open_trees if args.task == "parsing" else _open_text)(args)
    _refuse_shared_files(inputs)
    corpora = [Corpus(read, weight) for read, weight in zip(readers, weights, strict=True)]
    learning = {"vocab_size": recipe.vocab_size, "subword_model": recipe.subword_model}
    tokenizer = None
    if args.keep_vocabulary is not None:
        tokenizer = _load_vocabulary(args, corpora)
    elif args.task == "parsing":
        tokenizer = learn_vocabulary(partial(read_all, corpora), **learning)
    with tqdm(unit=" pairs", file=sys.stderr, disable=None) as bar:
        summary = prepare(
            corpora,
            read_dev,
            args.output,
            **learning,
            max_length=recipe.max_length,
            pair_filter=PairFilter(
                max_length_ratio=recipe.max_length_ratio,
                drop_duplicates=args.drop_duplicates,
                drop_identical=args.drop_identical,
            ),
            tokenizer=tokenizer,
            source_language=args.source_language,
            target_language="trees" if args.task == "parsing" else args.target_language,
            inputs=inputs,
            log=bar.write,
            on_pairs=bar.update,
        )
    # What `vaswani train` takes by default.
    write_json(args.output / RECIPE_FILE, {"recipe": recipe.to_dict()})
    if len(weights) > 1:
        for names, weight, counts in zip(args.train, weights, summary["train"]["corpora"], strict=True):
            _print_counts(f"{' '.join(names)}, weight {weight}", counts, recipe.max_length)
    for name in ("train", "dev"):
        _print_counts(name, summary[name], recipe.max_length)
    languages = f"{summary['source_language']} to {summary['target_language']}"
    print(f"{languages}: vocabulary of {summary['vocab_size']:,} and token ids in {args.output}")


def _load_vocabulary(args: argparse.Namespace, corpora: Sequence[Corpus]) -> PreTrainedTokenizerFast:
    """Load the tokenizer in a model folder, a run folder or prepared data, or of a model on the Hub.

    Raises:
        OSError: if there is none.
        ValueError: if it is not one of token ids from a tokenizer.json, or not one for the task.
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
        if missing := count_missing_labels(tokenizer, read_all(corpora)):
            counts = ", ".join(f"{label} {count:,}" for label, count in missing.most_common())
            print(
                f"the vocabulary of --keep_vocabulary lacks the brackets of {counts}: no parse will have these labels. "
                f"Rename or remove them in the training trees, or learn a vocabulary.",
                file=sys.stderr,
            )
    return tokenizer


def _print_counts(name: str, counts: Mapping[str, int], max_length: int) -> None:
    print(f"{name}: {summarise(counts)}")
    print(
        f"{name}: {counts['pairs']:,} pairs of {counts['source_tokens']:,} source and {counts['target_tokens']:,} "
        f"target tokens; {counts['over_max_length']:,} over {max_length} tokens"
    )


def _open_text(args: argparse.Namespace) -> tuple[list[Reader], Reader, dict]:
    """Return readers of the training corpora and of the development set, and a description for the fingerprint."""
    cache = work_folder(args.output) / CACHE_FOLDER
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
    """Return the same for corpora of any number of bracketed files."""

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
