"""Settings of PyTorch for devices and processes: precision, TF32, kernels of attention, shapes for the compiler."""

import os
from collections.abc import Callable

import torch
from torch import nn


def choose_precision(asked: str | None, device: str) -> str:
    """Return the precision of a training on a type of `device`: "no", "bf16" or "fp16".

    What is `asked` for wins, then a half precision of the launcher, then bf16 on a CUDA device that computes in it
    (compute capability 8.0). A launcher's "no" counts as no choice: `accelerate launch` says it by default.
    """
    precision = asked or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if asked is None and precision == "no" and device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    return precision


def avoid_plans_per_shape(device: str) -> None:
    """Switch cuDNN's attention, which makes a plan for each exact shape in 0.1 to 0.5 s, off on CUDA.

    On Hopper PyTorch prefers it. Flash and memory-efficient attention need no plans.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def allow_tf32(device: str) -> None:
    """Let CUDA round the factors of float32 products to TF32; NVIDIA_TF32_OVERRIDE=0 forbids it."""
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # the compiler of torch 2.13 cannot read the newer setting


def compile_once(model: nn.Module) -> Callable:
    """`model`, compiled at its first call for batches of all shapes, except where a size is one.

    Sizes are symbols: compiled for each of some 300 shapes of batches, the first epoch would spend hours on it. For
    compilers in the whole process, all other numbers (rates of dropout) are constants, and sizes that are equal in the
    first batch need not be in others; with `dynamic=True` alone PyTorch compiles again for both.
    """
    torch._dynamo.config.specialize_float = True
    torch.fx.experimental._config.use_duck_shape = False
    return torch.compile(model, dynamic=True)


def check_processes(num_processes: int) -> None:
    """Raise a ValueError where the launcher started others than `num_processes`: each would do all the work."""
    if int(os.environ.get("WORLD_SIZE", "1")) != num_processes:
        raise ValueError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but each takes itself for one of "
            f"{num_processes}. Without GPUs, set ACCELERATE_USE_CPU=true for the launcher."
        )
