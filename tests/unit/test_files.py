"""Files and folders that are written completely, compared, locked, or tied to the settings of one run."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import pytest

from vaswani_transformer.files import (
    check_replaceable,
    claim,
    find_changes,
    lock_folder,
    read_object,
    remove,
    write_folder,
    write_whole,
)


def test_an_unfinished_file_does_not_replace_the_old_one(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with contextlib.suppress(KeyboardInterrupt), write_whole(path) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    with write_whole(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_error_about_a_failed_write_names_the_file_and_other_errors_are_unchanged(tmp_path, little_room):
    path = tmp_path / "file"
    with little_room(10), pytest.raises(OSError, match=rf"File too large: '{path}'"), write_whole(path) as file:
        file.write(bytes(11))
    with pytest.raises(FileNotFoundError, match=r"elsewhere"), write_whole(path):
        (tmp_path / "elsewhere").read_bytes()


def test_a_folder_that_a_killed_process_has_set_aside_gets_its_name_back(tmp_path):
    old = tmp_path / ".model.old"
    old.mkdir()
    (old / "notes.txt").write_text("of the user")
    with contextlib.suppress(KeyboardInterrupt), write_folder(tmp_path / "model"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "notes.txt"]


def test_links_at_the_names_of_unfinished_files_and_folders_are_removed_and_not_followed(tmp_path):
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    (tmp_path / "file.partial").symlink_to(precious)
    with write_whole(tmp_path / "file") as file:
        file.write(b"new")
    for end in ("new", "old"):
        (tmp_path / f".model.{end}").symlink_to(precious.parent)
    with write_folder(tmp_path / "model") as folder:
        (folder / "precious").write_text("new")
    (tmp_path / "link").symlink_to(precious.parent)
    remove(tmp_path / "link")
    assert precious.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "file", "model"]


def test_new_files_have_the_mode_of_the_umask_and_files_of_the_user_keep_theirs(tmp_path):
    own = tmp_path / "model" / "own"
    own.parent.mkdir()
    own.touch(0o600)
    umask = os.umask(0o027)
    try:
        with write_folder(own.parent) as folder:
            (folder / "weights").touch(0o600)
        with write_whole(tmp_path / "file"):
            pass
    finally:
        os.umask(umask)
    files = (tmp_path / "file", own.with_name("weights"), own)
    assert [path.stat().st_mode & 0o777 for path in files] == [0o640, 0o640, 0o600]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_the_file_system_has_no_locks_work_goes_on_with_a_warning(tmp_path, monkeypatch, code):
    def refuse(descriptor, operation):
        raise OSError(code, os.strerror(code))

    (tmp_path / "lock").touch()  # left by an earlier process
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=rf"has no locks \({os.strerror(code)}\)"), lock_folder(tmp_path):
        pass


def test_pipes_are_neither_read_nor_copied(tmp_path):
    pipe = tmp_path / "model" / "pipe"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"pipe is a pipe or a device, not a file: remove it"):
        read_object(pipe)
    with write_folder(pipe.parent):
        pass
    assert not list(pipe.parent.iterdir())


@pytest.mark.parametrize(
    "make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to(".")]
)
def test_a_new_folder_does_not_replace_a_file_a_pipe_or_a_link(tmp_path, make):
    make(tmp_path / "model")
    with pytest.raises(ValueError, match="model is the current folder, a mount point, a link or a file"):
        check_replaceable(tmp_path / "model")


def test_find_changes_names_each_difference_by_its_path():
    recorded = {"a": 1, "b": {"c": "x"}, "d": [1], "same": None}
    given = {"a": 2, "b": {"c": None}, "d": [1, 2], "same": None, "e": True}
    assert sorted(find_changes(recorded, given, "it")) == [
        "it.a was 1, is 2",
        'it.b.c was "x", is not set',
        "it.d was [1], is [1, 2]",
        "it.e was not set, is true",
    ]
    assert not list(find_changes(given, given, "it"))


def test_a_folder_is_locked_until_the_writing_process_ends(tmp_path, another_process):
    message = "another process writes in .*: wait until it ends, or name another output"
    with pytest.raises(ValueError, match=message), lock_folder(tmp_path):
        pass
    another_process.kill()
    another_process.join()
    with lock_folder(tmp_path):
        pass


def test_a_claim_records_settings_once_and_then_compares_them(tmp_path):
    path = tmp_path / "settings.json"
    assert claim(path, {"seed": (1, 2)}, advice="Start again.", owned=["*.txt"]) == {"seed": [1, 2]}
    (tmp_path / "own.txt").write_text("written since")
    assert claim(path, {"seed": [1, 2]}, advice="Start again.", owned=["*.txt"]) == {"seed": [1, 2]}
    with pytest.raises(ValueError, match=r"other settings: seed was \[1, 2\], is \[1, 3\]\. Start again\."):
        claim(path, {"seed": [1, 3]}, advice="Start again.")


def test_a_claim_on_files_of_the_user_is_refused(tmp_path):
    (tmp_path / "own.txt").write_text("of the user")
    with pytest.raises(ValueError, match=r"own\.txt would be overwritten, and no settings\.json"):
        claim(tmp_path / "settings.json", {}, advice="", owned=["*.json", "*.txt"])
    (tmp_path / "settings.json").write_text('{"of": "the user"}')
    with pytest.raises(ValueError, match="seed was not set, is 1"):
        claim(tmp_path / "settings.json", {"seed": 1}, advice="")
