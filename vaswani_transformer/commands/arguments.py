"""Arguments that several commands share: corpora, options of the search, output files."""

import argparse
import contextlib
import gzip
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from .. import loading
from ..data.corpus import Pair, describe_source, open_parallel
from ..data.phrasebook.pairs import generate_pairs
from .parsers import PHRASEBOOK


def open_reader(
    names: list[str], args: argparse.Namespace, *, split: str, num_pairs: int, cache: Path | None = None
) -> Callable[[], Iterable[Pair]]:
    """Return a function that reads the pairs from the start at each call."""
    if names == [PHRASEBOOK]:
        languages = f"{args.source_language} to {args.target_language}"
        if languages != "en to de":
            raise ValueError(f"the phrasebook is from en to de, not {languages}: leave the languages out.")
        own_split = {"validation": "dev"}.get(split, split)
        return lambda: generate_pairs(split=own_split, num_pairs=num_pairs)
    columns = (args.source_column or args.source_language, args.target_column or args.target_language)
    return lambda: open_parallel(names, columns, split=split, cache=cache)


def describe_inputs(names: list[str], *, split: str, num_pairs: int) -> list[dict]:
    """Describe the input of the reader of `names`, for the fingerprint."""
    if names == [PHRASEBOOK]:
        return [{"dataset": PHRASEBOOK, "split": split, "num_pairs": num_pairs}]
    return describe_source(names, split=split)


def load_members(args: argparse.Namespace) -> list[loading.Loaded]:
    """Load `args.model` and the further models of its ensemble, whose tokens must be those of the first.

    Raises:
        ValueError: if a further model has another vocabulary.
        FileNotFoundError: if there is no such model.
    """
    names = [args.model, *args.ensemble]
    members = [loading.load(name, dtype=args.dtype) for name in names]
    vocabulary = members[0].tokenizer.get_vocab()
    for name, member in zip(names, members, strict=True):
        if member.tokenizer.get_vocab() != vocabulary:
            raise ValueError(
                f"models of an ensemble must share one vocabulary, and {name} has another than {args.model}: train "
                f"them on data of one tokenizer (`vaswani prepare --keep_vocabulary MODEL`)."
            )
    return members


def search_options(args: argparse.Namespace, members: Sequence[loading.Loaded]) -> dict[str, object]:
    """Return the given options of `add_search_options`, as `Translator` takes them; `members` as of `load_members`."""
    names = ("num_beams", "length_penalty", "max_length_offset", "split_sentences")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.ensemble:
        options["ensemble"] = [member.model for member in members[1:]]
    return options


def check_new_folder(folder: Path) -> None:
    """Raise a ValueError for a file, or a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: files of another model may not be mixed in. Name a new folder.")


def check_output(path: Path | None, *, inputs: Iterable[str | Path | None]) -> None:
    """Raise a ValueError for a folder, or if `path` is one of the files `inputs`, by whatever name."""
    if path is not None and path.is_dir():
        raise ValueError(f"{path} is a folder: name a file.")
    for name in inputs:
        if path is not None and name is not None and path.exists() and Path(name).exists() and path.samefile(name):
            raise ValueError(f"{path} is read by this command, and would be replaced: name another output.")


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "wt", encoding="utf-8", newline="\n") as file:
        yield file
