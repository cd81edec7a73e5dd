"""Which pairs the filter keeps, and what it counts."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.data.filtering import MOST_WORD_BYTES, PairFilter, filter_pairs, summarise
from vaswani_transformer.data.lines import MOST_LINE_BYTES

texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)
sources = st.sampled_from(["", " ", "a", "a b", "a b c d"]) | texts
LONGEST_WORD, LONGEST_LINE = "x" * MOST_WORD_BYTES, "a " * (MOST_LINE_BYTES // 2 - 1) + "aa"


def either_side(*texts: str) -> list[tuple[str, str]]:
    return [pair for text in texts for pair in ((text, "a"), ("a", text))]


ENDLESS = either_side(f"a {LONGEST_WORD}x b", f"{LONGEST_LINE}a", "ä" * 2_049, "a" + "\t" * 4_097, " " * 4_097 + "a")


def kept_and_counts(pairs, **options) -> tuple[list, Counter]:
    counts = Counter()
    return list(filter_pairs(pairs, PairFilter(**options), counts)), counts


@given(
    st.lists(st.tuples(sources, st.sampled_from(["a", "b "]) | texts)),
    st.none() | st.floats(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_every_pair_is_kept_unchanged_and_in_order_or_counted_once(pairs, ratio, drop_duplicates, drop_identical):
    options = {"drop_duplicates": drop_duplicates, "drop_identical": drop_identical}
    kept, counts = kept_and_counts(pairs, max_length_ratio=ratio, **options)
    rest = iter(pairs)
    assert all(pair in rest for pair in kept)
    summary = summarise(counts)
    assert summary.startswith(f"read {len(pairs):,} pairs, kept {len(kept):,}")
    dropped = re.findall(r"(\d+) (?:with an|with two|of too|seen)", summary)
    assert sum(map(int, dropped)) == len(pairs) - len(kept)


@pytest.mark.parametrize(
    ("options", "kept", "dropped", "reason"),
    [
        ({}, [("a", "a"), ("a", "a"), ("a", " b " * 99)], [(" ", "b"), ("a", "\u2028")], "empty"),
        ({"max_length_ratio": 1.5}, [("a b", "c d e"), ("a b c", "d e")], [("a", "b c"), ("a b c d", "e")], "ratio"),
        ({"drop_duplicates": True}, [("a", "b"), ("a", "c"), ("ab", "c"), ("a", "bc")], [(" a", "b ")], "duplicate"),
        ({"drop_identical": True}, [("one", "eins")], [("Berlin", "Berlin ")], "identical"),
        ({}, either_side(LONGEST_WORD, f"a {LONGEST_WORD} b", LONGEST_LINE, "ä" * 2_048), ENDLESS, "endless"),
    ],
)
def test_each_filter_drops_and_counts_just_what_it_says(options, kept, dropped, reason):
    found, counts = kept_and_counts([*kept, *dropped], **options)
    assert found == kept
    numbers = {"read": len(kept) + len(dropped), "kept": len(kept), reason: len(dropped)}
    assert counts == Counter(**numbers)


def test_summary_says_in_one_line_what_was_dropped():
    counts = Counter(read=4000, kept=3980, empty=1, endless=2, ratio=3, duplicate=4, identical=10)
    assert summarise(counts) == (
        "read 4,000 pairs, kept 3,980 (99.50%), dropped 1 with an empty side, 2 with a line over 1,048,576 or a word "
        "over 4,096 bytes, 3 of too unequal length, 4 seen before, 10 with two identical sides"
    )
    assert summarise(Counter()) == "read 0 pairs, kept 0, dropped none"
