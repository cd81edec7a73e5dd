"""Folders that two processes must not write in at once."""

import errno
import os

import pytest

from vaswani_transformer.resuming import locks as processes
from vaswani_transformer.resuming.locks import lock_folder


def test_a_folder_another_process_writes_in_is_refused_with_its_name(tmp_path, another_process_in):
    with another_process_in(tmp_path) as (holder, _):
        message = rf"process {holder.pid} on host \S+ is writing in .*Wait for it or end it, or name another"
        with pytest.raises(ValueError, match=message), lock_folder(tmp_path):
            pass


def test_the_folder_of_a_killed_process_is_free_though_its_workers_live(tmp_path, another_process_in):
    with another_process_in(tmp_path) as (holder, child):
        holder.kill()
        holder.join()
        os.kill(child, 0)  # is there
        with lock_folder(tmp_path):
            assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on host ")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(processes.fcntl, "lockf", refuse)
    with pytest.warns(UserWarning, match="cannot be locked .*No locks available.*: start nothing else there"):  # noqa: SIM117
        with lock_folder(tmp_path):
            pass
