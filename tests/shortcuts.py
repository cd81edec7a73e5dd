"""Shortcuts of many tests: name cases, run a command, read and write small files, and make a dangerous pickle."""

import json
import shlex
import sys

import pytest
import torch

from vaswani_transformer import cli

# Tokens of the tiny models, and sentences of 2, 5, 7 and 4 tokens, </s> included.
START, PAD, END = 0, 1, 2
SENTENCES = [[9, 2], [5, 6, 7, 8, 2], [21, 9, 30, 4, 12, 35, 2], [8, 3, 21, 2]]
SOURCE = torch.tensor([[9, 2, PAD, PAD, PAD], [5, 6, 7, 8, 2], [21, 9, 30, 2, PAD]])
TEXTS = ["a dog runs", "", "two cats sleep on the big bed", " ", "a dog", "the dog runs and runs"]


def each_case(names, cases):
    """Return a decorator that runs a test for each of the `cases`, {name of the case: value or values of `names`}."""
    return pytest.mark.parametrize(names, cases.values(), ids=cases)


def vaswani(command, *arguments, status=0):
    """Run a command, and check its exit status.

    Args:
        command: the command as typed in a shell, without the word "vaswani".
        arguments: further arguments, which are not split at spaces, such as a sentence or a path.
        status: the expected exit status.
    """
    assert cli.main([*shlex.split(command), *map(str, arguments)]) == status


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path, **values):
    """Replace the `values` of a JSON object in a file, or add them."""
    path.write_text(json.dumps(read_json(path) | values), encoding="utf-8")


class Program:
    """An object whose pickle, when it is read, ends the process."""

    def __reduce__(self):
        return sys.exit, ("the pickle has been run",)
