"""What a process keeps of the memory it frees."""

import ctypes
from types import SimpleNamespace

import pytest

from vaswani_transformer.memory import keep_freed_memory

MALLOC_OPTIONS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@pytest.mark.parametrize("given", [None, *MALLOC_OPTIONS])
def test_glibc_is_asked_to_keep_freed_memory_where_the_environment_says_nothing_of_it(monkeypatch, given):
    calls = []
    for name in MALLOC_OPTIONS:
        monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(given, "1000000")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *call: calls.append(call) or 1))
    keep_freed_memory()
    # As malloc.h numbers M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
    assert calls == ([] if given else [(-1, 256 * 2**20), (-3, 32 * 2**20)])
