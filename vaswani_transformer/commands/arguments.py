"""Arguments that several commands share: models, columns, options of the search, recipes, input and output files."""

import argparse
import contextlib
import gzip
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TextIO

from ..bounds import SEARCH_BOUNDS, Number
from ..files import naming

STANDARD_INPUT = Path("/dev/stdin")
# Endings of files whose lines are more than sentences.
FORMS = r".*\.(csv|tsv|jsonl?|srt|vtt|ass|html?|xml|sgml?|xlf|xliff|tmx|pot?|md|rst|tex)(\.gz)?"
OF_SEARCH = ("num_beams", "length_penalty", "max_length_offset", "split_sentences")  # arguments of `Translator`


def output_folder(text: str) -> Path:
    """Parse the name of a folder to write.

    An empty name, which would mean the working directory, is an error: a shell variable may be unset. The name `-`,
    which elsewhere means standard output, is an error too.
    """
    if text == "":
        raise argparse.ArgumentTypeError("expected a path, got an empty text: is a shell variable unset?")
    if text == "-":
        raise argparse.ArgumentTypeError("this output cannot be standard output: name a file or folder")
    return Path(text)


def output_stream(text: str) -> Path | None:
    """Parse the name of a file to write. Return None for `-`, which means standard output."""
    return None if text == "-" else output_folder(text)


def text_path(text: str) -> Path:
    """Parse the name of a text file to read; `-` is standard input."""
    return STANDARD_INPUT if text == "-" else Path(text)


# An option declares by its `type` what it names. `check_files` tells these types apart, although some of them parse
# a name in the same way.
new_folder = partial(output_folder)  # an empty folder, or a folder to make
output_path = partial(output_folder)  # a file to write
text_stream = partial(output_stream)  # a text file to read, or None for standard input
corpus_name = partial(str)  # a text file, or another form of text, such as a dataset on the Hub


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")


def add_text_pairs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--source", type=text_path, required=True, help="UTF-8 text, one sentence per line")
    command.add_argument("--target", type=text_path, required=True, help="translation of each source line, in order")


def add_column_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--source_column",
        help="name of the source column in .csv, .jsonl, .parquet and Hub datasets; default: the source language",
    )
    command.add_argument("--target_column", help="name of the target column; default: the target language")


def add_beam_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num_beams", type=SEARCH_BOUNDS["num_beams"], help="width of the beam; 1 is greedy search")
    group.add_argument("--length_penalty", type=SEARCH_BOUNDS["length_penalty"], help="alpha of the length penalty")


def add_search_options(command: argparse.ArgumentParser) -> None:
    decoding = command.add_argument_group("decoding (section 6.1); default: the settings of the model")
    add = decoding.add_argument
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="data type of the weights")
    add_beam_options(decoding)
    add(
        "--max_length_offset",
        type=SEARCH_BOUNDS["max_length_offset"],
        help="a translation may be at most this many tokens longer than its source",
    )
    add(
        "--ensemble",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="further models, whose probabilities are averaged with those of --model",
    )
    add(
        "--split_sentences",
        action="store_true",
        help="translate the sentences of a line one by one; `translate` also joins lines that end inside a sentence",
    )
    add(
        "--tokens_per_batch",
        type=Number(1, 10_000_000),
        help="limit of source tokens per batch, with padding; default: 2,000 on a CPU, 8,192 elsewhere",
    )


def add_recipe_options(command: argparse.ArgumentParser, *, default: str) -> None:
    command.add_argument("--recipe", help=f"name of a recipe (`vaswani recipes`), or a JSON file; default: {default}")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="FIELD=VALUE",
        help="change a field of the recipe (model.dropout=0.3); may be repeated",
    )


def take_given(args: argparse.Namespace, *names: str) -> dict[str, object]:
    """Return the options among `names` that are given, with their values."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def load_members(args: argparse.Namespace) -> list:
    """Return what `loading.load` returns for --model and for each further model of --ensemble.

    The models of an ensemble must have the same vocabulary.

    Raises:
        ValueError: if the vocabularies differ.
        FileNotFoundError: if a model does not exist.
    """
    from ..loading import load

    members = [load(name, dtype=args.dtype) for name in (args.model, *args.ensemble)]
    vocabulary = members[0].tokenizer.get_vocab()
    for name, member in zip(args.ensemble, members[1:], strict=True):
        if member.tokenizer.get_vocab() != vocabulary:
            raise ValueError(
                f"models of an ensemble must share one vocabulary, but {name} and {args.model} have different ones: "
                f"prepare their data with `vaswani prepare --keep_vocabulary MODEL`."
            )
    return members


def check_files(args: argparse.Namespace) -> None:
    """Check the files that the options of a command name, by the types of the options.

    A file whose name shows another form than plain text gets a warning. A corpus with a single name may be a dataset on
    the Hub, so it may be missing.

    Raises:
        FileNotFoundError: if a text file to read is missing.
        IsADirectoryError: if a text file to read is a folder.
        ValueError: if standard input is to be read twice, if a new folder is a file or not empty, or for the reasons
            that `check_output` names.
    """
    inputs = list(chain.from_iterable(_list_values(args, text_path, text_stream)))
    corpora = list(_list_values(args, corpus_name))
    if inputs.count(STANDARD_INPUT) > 1:
        raise ValueError("standard input (-) is given for two texts, but can be read only once: name a file.")
    for path in map(Path, (*inputs, *chain.from_iterable(corpus for corpus in corpora if len(corpus) > 1))):
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}: name a text file.")
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: name a text file.")
        if re.fullmatch(FORMS, path.name.lower()):
            warnings.warn(
                f"each line of {path} is read as plain text, with all that its form adds to the sentences: write the "
                f"sentences to a text file, one per line.",
                stacklevel=1,
            )
    for path in chain.from_iterable(_list_values(args, new_folder)):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(
                f"{path} is not an empty folder: name a new one, so that the files of two models are not mixed."
            )
    taken = [STANDARD_INPUT, *inputs, *chain.from_iterable(corpora)]
    for path in chain.from_iterable(_list_values(args, output_path, output_stream)):
        check_output(path, taken=taken)
        taken.append(path)


def _list_values(args: argparse.Namespace, *types: Callable) -> Iterator[list]:
    """Yield the values of all options with one of `types`, in a list for each time that an option is given."""
    for action in args.parser._actions:
        value = getattr(args, action.dest, None)
        if action.type in types and value is not None:
            values = value if isinstance(value, list) else [value]
            yield from values if isinstance(action, argparse._AppendAction) else [values]


def check_output(path: Path, *, taken: Iterable[str | Path]) -> None:
    """Check the file `path`, which a command will write.

    Raises:
        ValueError: if it is a folder, if it would be a file of a model, or if its name, or this name with `.partial`
            after it, is one of the files that are `taken`. Links are followed. A device, such as a terminal, may have
            several uses at once.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file.")
    suffixes = ()
    if (path.parent / "config.json").exists():
        from ..runs import SUFFIXES as suffixes  # This import takes a second.
    names = path, path.with_name(f"{path.name}.partial")
    if path.suffix in suffixes or any(_is_same(name, Path(other)) for name in names for other in taken):
        raise ValueError(
            f"{path} is another input or output of this command, or a part of one, and would be replaced: name another "
            f"output."
        )


def _is_same(one: Path, other: Path) -> bool:
    """Return True if two paths lead to the same file. The file may be missing."""
    if one.exists() and other.exists():
        return one.is_file() and one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open `path` to write text, or standard output if `path` is None. A file whose name ends in .gz is compressed."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    open_file = gzip.open if path.suffix == ".gz" else open
    with naming(path), open_file(path, "wt", encoding="utf-8", newline="\n") as file:
        yield file
