"""The README is short, and the map in model/README.md names existing code and tests for each part of the paper."""

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "vaswani_transformer"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAP = (PACKAGE / "model/README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+) \| \[.+\]\((.+)\) \| `([\w.]+)` \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE)
ROWS = ROW.findall(MAP)
# A row may name several parts of the paper. "3.2.1, equation 1, figure 2 left: scaled dot-product attention" has three.
PLACES = [place for paper, *_ in ROWS for place in paper.partition(":")[0].split(", ")]
# The sections, equations, tables and figures of the paper that can be computed, drawn or measured.
PAPER = (
    *("3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4", "5.1", "5.2", "5.3", "5.4", "6.1", "6.2", "6.3"),
    *(f"equation {number}" for number in range(1, 4)),
    *(f"table {number}" for number in range(1, 5)),
    *(f"figure {number}" for number in range(1, 6)),
)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


def test_the_pattern_matches_every_row_of_the_map_of_the_paper():
    table = MAP.split("## The paper, section by section")[1].split("\n## ")[0]
    assert len(ROWS) == sum(line.startswith("| ") for line in table.splitlines()) - 1  # without the header


@pytest.mark.parametrize(("paper", "file", "name", "test_file", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_files_functions_and_tests_in_the_map_exist(paper, file, name, test_file, test):
    path = (PACKAGE / "model" / file).resolve()
    if path.suffix == ".toml":
        assert f"[{name}]" in path.read_text().splitlines()
    else:
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("scripts."))
        assert attrgetter(name)(module) is not None
    assert f"\ndef {test}(" in (ROOT / "tests" / test_file).read_text(encoding="utf-8")


@pytest.mark.parametrize("item", PAPER)
def test_the_map_covers_the_whole_paper(item):
    assert any(f"{place} ".startswith(f"{item} ") for place in PLACES)
