"""Settings of PyTorch for devices and processes: precision, TF32, kernels of attention, shapes for the compiler."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

SECONDS_OF_TEST, SECONDS_BETWEEN_TESTS = 0.05, 10.0  # of `free_cores`


def choose_precision(asked: str | None, device: str) -> str:
    """Return the precision of a training on a type of `device`: "no", "bf16" or "fp16".

    `asked` has precedence, then a half precision of the launcher, then bf16 on a CUDA device that computes in it
    (compute capability 8.0). A launcher's "no" counts as no choice, because it is the default of `accelerate launch`.
    """
    precision = asked or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if asked is None and precision == "no" and device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    return precision


def avoid_plans_per_shape(device: str) -> None:
    """Disable cuDNN's attention on CUDA, which needs 0.1 to 0.5 s to plan for each new shape.

    PyTorch prefers it on Hopper. Flash and memory-efficient attention need no plans.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def allow_tf32(device: str) -> None:
    """Let CUDA round the factors of float32 products to TF32. NVIDIA_TF32_OVERRIDE=0 in the environment forbids it."""
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # the compiler of torch 2.13 cannot read the newer setting


def compile_once(model: nn.Module) -> Callable:
    """Return `model`, compiled at its first call for batches of all shapes, except where a size is one.

    Sizes are symbols, because compiling for each of about 300 shapes of batches would take hours of the first epoch.
    Two settings of the whole process keep PyTorch from compiling again. By the first, other numbers, such as rates of
    dropout, are constants. By the second, sizes that are equal in the first batch may differ in others.
    """
    torch._dynamo.config.specialize_float = True
    torch.fx.experimental._config.use_duck_shape = False
    return torch.compile(model, dynamic=True)


def check_processes(num_processes: int) -> None:
    """Raise a ValueError if the launcher started another number of processes, because each would do all the work."""
    if int(os.environ.get("WORLD_SIZE", "1")) != num_processes:
        raise ValueError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but they are not connected: each knows of "
            f"{num_processes}. Without GPUs, set ACCELERATE_USE_CPU=true for the launcher."
        )


@contextlib.contextmanager
def free_cores(device: torch.device) -> Iterator[None]:
    """Let PyTorch compute with as many threads as this process gets cores, while the block runs.

    The threads of a search wait for each other at every product. Beside one busy process on two cores, two threads took
    2 to 4 times as long as one, and alone 0.6 to 0.8 times as long. The number of threads does not change a
    translation. It stays as it is for a GPU, and where OMP_NUM_THREADS is in the environment, which launchers set.
    """
    most_threads = torch.get_num_threads()
    if device.type != "cpu" or most_threads == 1 or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    cores = _count_cores(most_threads, time.perf_counter() // SECONDS_BETWEEN_TESTS)
    torch.set_num_threads(min(most_threads, max(1, int(cores + 0.3))))
    try:
        yield
    finally:
        torch.set_num_threads(most_threads)


@functools.lru_cache(maxsize=1)
def _count_cores(num_threads: int, _period: float) -> float:
    """Return how many cores `num_threads` threads get in a short test, which is made once in each period."""
    entries = torch.zeros(num_threads * 2**16)  # enough for PyTorch to give each thread a part
    entries.add_(1)  # The first operation starts the threads.
    started, used_before = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - started) < SECONDS_OF_TEST:
        entries.add_(1)
    return (time.process_time() - used_before) / seconds
