"""The repository stays small: the sizes below are lowered with each deletion, and never raised."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUNDS = {
    "lines of the package": 11_739,
    "lines of the tests": 12_266,
    "lines of the scripts": 2_797,
    "lines that travel with the weights": 2_286,
    "files that travel with the weights": 7,
    "files of code below model_cards": 0,
}
SLACK = 100  # lines; a larger deletion lowers its bound


def count_lines(pattern: str, *suffixes: str) -> int:
    paths = (path for path in ROOT.glob(pattern) if path.suffix in suffixes)
    return sum(path.read_bytes().count(b"\n") for path in paths)


def measure() -> dict[str, int]:
    return {
        "lines of the package": count_lines("vaswani_*/**/*", ".py") + count_lines("vaswani_*", ".py"),
        "lines of the tests": count_lines("tests/**/*", ".py"),
        "lines of the scripts": count_lines("scripts/**/*", ".py", ".sh"),
        "lines that travel with the weights": count_lines("vaswani_transformer/model/*_vaswani.py", ".py"),
        "files that travel with the weights": len(list(ROOT.glob("vaswani_transformer/model/*_vaswani.py"))),
        "files of code below model_cards": len(list((ROOT / "model_cards").rglob("*.py"))),
    }


@pytest.mark.parametrize("name", BOUNDS)
def test_nothing_grows(name):
    size, bound = measure()[name], BOUNDS[name]
    assert size <= bound, f"{name}: {size}, at most {bound}. Delete as much elsewhere; the bound is never raised."
    assert bound - size < SLACK, f"{name}: {size} is well below {bound}. Lower the bound."
