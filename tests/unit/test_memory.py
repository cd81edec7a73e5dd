"""What a process keeps of the memory it frees."""

import platform
import subprocess
import sys

import pytest

# Page faults of 30 blocks of 24 MB, taken and freed one after the other, that are warm by then.
COUNT_FAULTS = """
import resource, torch
from vaswani_transformer.memory import keep_freed_memory
{call}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(6_000_000)
before = faults()
for _ in range(30):
    torch.ones(6_000_000)
print(faults() - before)
"""


def count_faults(call: str, **environment: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS.format(call=call)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep freed memory")
def test_freed_memory_is_kept_unless_the_environment_says_how_much():
    every_page = 30 * 24_000_000 // 4096
    mapping_all = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    assert count_faults("", **mapping_all) > every_page // 2
    assert count_faults("keep_freed_memory()", **mapping_all) > every_page // 2
    assert count_faults("keep_freed_memory()") < every_page // 10
