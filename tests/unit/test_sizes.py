"""The repository stays small. Its size is counted in tokens of code, not in lines.

A token is a name, a number, an operator or a string. Docstrings, comments and line breaks cost nothing.
"""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = (tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING)
F_STRING = getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None)  # from Python 3.12 on
BOUNDS = {  # tokens
    "vaswani_transformer": 81_000,
    "vaswani_transformer/model": 15_400,
    "tests": 117_000,
    "scripts": 17_500,
}


def count_tokens(source: str) -> int:
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    }
    count = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == F_STRING[1]:
            depth -= 1
        elif depth == 0:  # an f-string counts as one token, as in Python 3.11
            is_docstring = token.type == tokenize.STRING and token.start[0] in docstrings
            count += token.type in (*KINDS, F_STRING[0]) and not is_docstring
        if token.type == F_STRING[0]:
            depth += 1
    return count


@pytest.mark.parametrize("folder", BOUNDS)
def test_code_stays_small(folder):
    size = sum(count_tokens(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py"))
    assert size <= BOUNDS[folder], f"{folder}: {size} tokens of code, at most {BOUNDS[folder]}: what can be deleted?"


def test_seven_files_are_saved_with_the_weights():
    assert len(list(ROOT.glob("vaswani_transformer/model/*_vaswani.py"))) == 7


def test_bundled_weights_come_without_code():
    assert not list((ROOT / "model_cards").rglob("*.py"))
