"""Memory of a process: limits of what it keeps on a CPU while the shapes of its batches vary, and errors over it."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # numbers of mallopt(3)
FREED_BYTES_TO_KEEP = 256 * 2**20
LARGEST_KEPT_BLOCK = 32 * 2**20  # the most that glibc takes
KERNELS_TO_KEEP = 192  # with 160, a search of 64 sentences made its kernels again each time


def keep_few_kernels() -> None:
    """Limit oneDNN's cache of CPU kernels, one per shape of a product; call it before the first product.

    A kernel takes up to a megabyte, and by default 1,024 are kept in each of two places: searches of batches of all
    sizes grew by 0.8 GB, and by 0.3 GB with this limit. Numbers set in the environment are kept.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS_TO_KEEP))


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for errors over memory without an explanation: CUDA's has a class, that of PyTorch on CPUs a text."""
    is_of_the_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    is_bare = isinstance(error, MemoryError) and not str(error)
    return is_of_the_cpu or is_bare or type(error).__name__ == "OutOfMemoryError"


def keep_freed_memory() -> None:
    """Let glibc keep memory that each step of a search frees: one of 64 sentences took 9 to 11 % less time.

    Numbers set in the environment (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_) are kept.
    """
    if os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # another C library: Windows, macOS, musl
        return
    mallopt(M_TRIM_THRESHOLD, FREED_BYTES_TO_KEEP)
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
