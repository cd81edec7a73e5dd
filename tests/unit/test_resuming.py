import contextlib

import pytest

from vaswani_transformer.resuming.files import find_changes, write_whole


@pytest.mark.parametrize("name", [None, "elsewhere"])
def test_a_file_that_is_not_finished_leaves_the_old_one_in_its_place(tmp_path, name):
    path, unfinished = tmp_path / "file", None if name is None else tmp_path / name
    path.write_bytes(b"old")
    with contextlib.suppress(KeyboardInterrupt), write_whole(path, unfinished) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    with write_whole(path, unfinished) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_differs_is_named_by_its_path():
    recorded = {"a": 1, "b": [1, {"c": "x"}], "d": [1], "same": None}
    given = {"a": 2, "b": [1, {"c": None}], "d": [1, 2], "same": None, "e": True}
    assert sorted(find_changes(recorded, given, "it")) == [
        "it.a was 1, is 2",
        'it.b[1].c was "x", is null',
        "it.d was [1], is [1, 2]",
        "it.e was null, is true",
    ]
    assert not list(find_changes(given, given, "it"))
