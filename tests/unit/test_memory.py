"""What a process keeps of the memory it frees."""

import ctypes

import pytest

from vaswani_transformer.memory import keep_freed_memory

MALLOC_OPTIONS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@pytest.fixture
def asked(monkeypatch):
    """What a C library is asked for; another one has no `mallopt`."""
    calls = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            calls.append((option, value))
            return 1

    for name in MALLOC_OPTIONS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    return calls


def test_glibc_is_asked_to_keep_freed_memory(asked):
    keep_freed_memory()
    assert asked == [(-1, 256 * 2**20), (-3, 32 * 2**20)]  # as malloc.h numbers M_TRIM_THRESHOLD and M_MMAP_THRESHOLD


@pytest.mark.parametrize("name", MALLOC_OPTIONS)
def test_what_the_environment_says_of_freed_memory_holds(asked, monkeypatch, name):
    monkeypatch.setenv(name, "1000000")
    keep_freed_memory()
    assert not asked
