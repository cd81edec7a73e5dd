"""The benchmark of `vaswani prepare` runs, and the pairs that it makes never repeat."""

import json
from itertools import islice

import benchmark_preparation
import pytest


def test_made_pairs_are_real_ones_joined_and_never_repeat():
    made = list(islice(benchmark_preparation.vary([("a dog", "ein hund"), ("a cat", "eine katze")]), 99))
    assert len(set(made)) == 99
    assert all(source.startswith(("a dog a ", "a cat a ")) for source, _ in made)


def test_both_sides_of_the_text_are_wanted():
    with pytest.raises(SystemExit, match="go together"):
        benchmark_preparation.main(["--source", "a.en"])


@pytest.mark.slow
def test_preparation_benchmark_runs(tmp_path, capsys):
    output = tmp_path / "result.json"
    assert benchmark_preparation.main(["--pairs", "500", "--vocab_size", "300", "--output", str(output)]) == 0
    assert "tokens/s, tokenising" in capsys.readouterr().out
    small, large = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert 0 < small["pairs"] <= 50 < large["pairs"] <= 500
    assert all(100 < peak < 2_000 for row in (small, large) for peak in row["peak_mib"].values())
