"""The filter of sentence pairs: which pairs it keeps, and how it counts the pairs that it drops."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.data.filtering import REASONS, filter_pairs, summarise

texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)
sources = st.sampled_from(["", " ", "a", "a b", "a b c d"]) | texts
# The longest text that is kept, and a text that is longer by one character.
LONGEST = " " * 9_999 + "ä"
ENDLESS = " " * 10_000 + "ä"


@given(st.lists(st.tuples(sources, st.sampled_from(["a", "b "]) | texts)), st.none() | st.floats(1, 3), st.booleans())
def test_every_pair_is_either_kept_unchanged_in_order_or_counted_as_dropped(pairs, ratio, drop_duplicates):
    counts = Counter()
    kept = list(filter_pairs(pairs, counts, max_length_ratio=ratio, seen=set() if drop_duplicates else None))
    rest = iter(pairs)  # each `in` continues after the last match, so it finds only pairs in order
    assert all(pair in rest for pair in kept)
    assert counts["read"] == len(pairs) == len(kept) + sum(counts[reason] for reason in REASONS)


@pytest.mark.parametrize(
    ("options", "kept", "dropped", "reason"),
    [
        (
            {},
            [("a", "a"), ("a", "a"), ("a", " b " * 99)],
            [(" ", "b"), ("a", "\u2028"), ("\ufeff\xad", "b"), ("a", " \u200b")],
            "empty",
        ),
        ({"max_length_ratio": 1.5}, [("a b", "c d e"), ("a b c", "d e")], [("a", "b c"), ("a b c d", "e")], "unequal"),
        ({"seen": set()}, [("a", "b"), ("a", "c"), ("ab", "c"), ("a", "bc")], [(" a", "b ")], "duplicate"),
        ({}, [(LONGEST, "a"), ("a", LONGEST)], [(ENDLESS, "a"), ("a", ENDLESS)], "endless"),
    ],
)
def test_each_filter_drops_and_counts_only_the_pairs_for_which_it_is_meant(options, kept, dropped, reason):
    counts = Counter()
    assert list(filter_pairs([*kept, *dropped], counts, **options)) == kept
    assert counts == {"read": len(kept) + len(dropped), reason: len(dropped)}
    assert summarise(counts) == f"read {counts['read']} pairs, dropped {len(dropped)} {reason}"


def test_the_summary_lists_the_reasons_in_one_line():
    counts = dict(zip(("read", *REASONS), (4_000, 1_000, 2, 3, 4, 5), strict=True))
    dropped = "1,000 endless, 2 empty, 3 unequal, 4 duplicate, 5 over max_length"
    assert summarise(counts) == f"read 4,000 pairs, dropped {dropped}"
    assert summarise({"read": 0}) == "read 0 pairs, dropped none"
