"""Settings of PyTorch: precision, TF32, attention kernels, compilation, processes and threads."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn


def choose_precision(asked: str | None, device: str) -> str:
    """Return the precision for training on the device type `device`: "no", "bf16" or "fp16".

    If `asked` is given, return it. Otherwise return the precision of the launcher, unless it is "no", which is the
    default of `accelerate launch`. Otherwise return "bf16" on a CUDA device that computes in bf16 (from compute
    capability 8.0 on), and "no" elsewhere.
    """
    if asked is not None:
        return asked
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision == "no" and device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return precision


def turn_off_cudnn_attention(device: str) -> None:
    """Turn off cuDNN's attention on CUDA, because it takes 0.1 to 0.5 s to plan for each new shape.

    On Hopper GPUs, PyTorch prefers cuDNN's attention. Flash attention and memory-efficient attention need no plans.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def allow_tf32(device: str) -> None:
    """Let CUDA round the factors of float32 products to TF32. NVIDIA_TF32_OVERRIDE=0 in the environment forbids it."""
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # The compiler of torch 2.13 cannot read the newer fp32_precision.


def compile_once(model: nn.Module) -> Callable:
    """Return a wrapper of `model` that is compiled at its first call, once for batches of all shapes.

    Sizes are symbols in the compiled code. Only a size of 1 is compiled separately. To compile for each of about 300
    batch shapes would take hours of the first epoch. Two settings, which hold for the whole process, keep PyTorch from
    compiling again. The first turns other numbers, such as dropout rates, into constants. The second lets two sizes
    that are equal in the first batch differ in later batches.
    """
    torch._dynamo.config.specialize_float = True
    torch.fx.experimental._config.use_duck_shape = False
    return torch.compile(model, dynamic=True)


def check_processes(num_processes: int) -> None:
    """Raise a ValueError if the launcher did not start `num_processes` processes.

    Processes that are not connected would each do all the work.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) != num_processes:
        raise ValueError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but they are not connected: each knows of "
            f"{num_processes}. Without GPUs, set ACCELERATE_USE_CPU=true for the launcher."
        )


@contextlib.contextmanager
def limit_threads(device: torch.device) -> Iterator[None]:
    """Limit PyTorch's threads to the number of cores that this process gets, while the block runs.

    The threads of a search wait for each other at every product. On two cores, two threads took 0.6 to 0.8 times as
    long as one thread. Beside another busy process they took 2 to 4 times as long as one. Translations do not depend on
    the number of threads. The number is not limited for a GPU, or if the environment has OMP_NUM_THREADS, which
    launchers set.
    """
    most_threads = torch.get_num_threads()
    if device.type != "cpu" or most_threads == 1 or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    cores = _count_cores(most_threads, time.perf_counter() // 10)  # The cores are counted at most every ten seconds.
    torch.set_num_threads(min(most_threads, max(1, int(cores + 0.3))))
    try:
        yield
    finally:
        torch.set_num_threads(most_threads)


@functools.lru_cache(maxsize=1)
def _count_cores(num_threads: int, _period: float) -> float:
    """Return how many cores `num_threads` threads get in a test of 50 ms. A new `_period` repeats the test."""
    entries = torch.zeros(num_threads * 2**16)  # enough for PyTorch to give each thread a part
    entries.add_(1)  # The first operation starts the threads.
    started, used_before = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - started) < 0.05:
        entries.add_(1)
    return (time.process_time() - used_before) / seconds
