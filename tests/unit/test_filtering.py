"""Which pairs the filter keeps, and what it counts."""

from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.data.filtering import MOST_WORD_BYTES, FilterCounts, PairFilter, filter_pairs
from vaswani_transformer.data.lines import MOST_LINE_BYTES

texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)


def kept_and_counts(pairs, **options) -> tuple[list, FilterCounts]:
    counts = FilterCounts()
    return list(filter_pairs(pairs, PairFilter(**options), counts)), counts


@given(
    st.lists(
        st.tuples(st.sampled_from(["", " ", "a", "a b", "a b c d"]) | texts, st.sampled_from(["a", "b "]) | texts)
    ),
    st.none() | st.floats(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_every_pair_is_in_exactly_one_count(pairs, max_length_ratio, drop_duplicates, drop_identical):
    options = {"drop_duplicates": drop_duplicates, "drop_identical": drop_identical}
    kept, counts = kept_and_counts(pairs, max_length_ratio=max_length_ratio, **options)
    dropped = counts.empty + counts.ratio + counts.duplicate + counts.identical
    assert counts.read == len(pairs) == counts.kept + dropped
    assert counts.kept == len(kept)
    rest = iter(pairs)
    assert all(pair in rest for pair in kept)  # unchanged and in order


def test_by_default_only_empty_sides_are_dropped():
    pairs = [("a", "a"), ("a", "a"), (" ", "b"), ("a", "\u2028"), ("a", " b " * 99)]
    kept, counts = kept_and_counts(pairs)
    assert kept == [("a", "a"), ("a", "a"), ("a", " b " * 99)]
    assert counts == FilterCounts(read=5, kept=3, empty=2)


def test_ratio_is_longer_over_shorter_side():
    pairs = [("a b", "c d e"), ("a b c", "d e"), ("a", "b c"), ("a b c d", "e")]
    kept, counts = kept_and_counts(pairs, max_length_ratio=1.5)
    assert kept == pairs[:2]
    assert counts.ratio == 2


def test_duplicates_are_equal_on_both_sides():
    pairs = [("a", "b"), ("a", "c"), (" a", "b "), ("ab", "c"), ("a", "bc")]
    kept, counts = kept_and_counts(pairs, drop_duplicates=True)
    assert kept == [("a", "b"), ("a", "c"), ("ab", "c"), ("a", "bc")]
    assert counts.duplicate == 1


def test_identical_sides_are_dropped_on_demand():
    kept, counts = kept_and_counts([("Berlin", "Berlin "), ("one", "eins")], drop_identical=True)
    assert kept == [("one", "eins")]
    assert counts.identical == 1


def test_endless_words_and_lines_are_dropped_and_counted():
    longest_word, longest_line = "x" * MOST_WORD_BYTES, "a " * (MOST_LINE_BYTES // 2 - 1) + "aa"
    kept = [(longest_word, "a"), ("a", f"a {longest_word} {longest_word}"), (longest_line, "a"), ("a", "ä" * 2_048)]
    dropped = [(longest_word + "x", "a"), ("a", f"a {longest_word}x b"), (longest_line + "a", "a"), ("a", "ä" * 2_049)]
    dropped += [("a", " " * (MOST_WORD_BYTES + 1) + "a"), ("a", "a" + "\t" * (MOST_WORD_BYTES + 1) + "a")]
    found, counts = kept_and_counts([*dropped, *kept])
    assert found == kept
    assert counts == FilterCounts(read=10, kept=4, endless=6)
    assert "dropped 6 with a line over 1,048,576 or a word over 4,096 bytes" in counts.summary()


def test_counts_are_right_while_the_pairs_go_by():
    counts = FilterCounts()
    pairs = filter_pairs([("", "b"), ("a", "b"), ("c", "d")], PairFilter(), counts)
    assert next(pairs) == ("a", "b")
    assert counts == FilterCounts(read=2, kept=1, empty=1)


def test_summary_says_in_one_line_what_was_dropped():
    counts = FilterCounts(read=4000, kept=3992, empty=1, ratio=3, duplicate=4)
    assert counts.summary() == (
        "read 4,000 pairs, kept 3,992 (99.80%), dropped 1 with an empty side, 3 of too unequal length, 4 seen before"
    )
    assert FilterCounts().summary() == "read 0 pairs, kept 0, dropped none"


# Duplicates
