"""How much memory a process keeps that works on batches of ever new shapes on a CPU."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # numbers of mallopt(3)
FREED_BYTES_TO_KEEP = 256 * 2**20
LARGEST_KEPT_BLOCK = 32 * 2**20  # the most that glibc takes
KERNELS_TO_KEEP = 192  # with 160, a search of 64 sentences made its kernels again each time


def keep_few_kernels() -> None:
    """Let oneDNN keep few of the kernels that it makes on a CPU, one for each shape of a product; before the first one.

    Batches have ever new shapes, and a kernel takes up to a megabyte: it would keep 1,024 in each of two places. A
    small model took 5.1 GB after 400 updates in half precision. Searches of batches of all sizes grew by 0.8 GB so, and
    by 0.3 GB with few kernels. Where the environment says how many, it is that many.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS_TO_KEEP))


def keep_freed_memory() -> None:
    """Let the C library keep what each step of a search frees, instead of giving it back and asking for it again.

    The system then need not clear the same pages over and over: a search of 64 sentences took 9 to 11 % less time, and
    training no more memory. Where the environment says how much to keep (MALLOC_TRIM_THRESHOLD_,
    MALLOC_MMAP_THRESHOLD_), it is that much; C libraries other than glibc are left alone.
    """
    if os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # another C library: Windows, macOS, musl
        return
    mallopt(M_TRIM_THRESHOLD, FREED_BYTES_TO_KEEP)
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
