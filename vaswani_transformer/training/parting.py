"""How processes that trained together part."""

import atexit
import gc

import torch


def part_at_exit() -> None:
    """Part from the other processes when this one ends, after its models are gone; each calls it when it is done.

    A process that ends without parting may be aborted by a thread of gloo (PyTorch's pull request 179291). One that
    parts while it has its model may hang: what gathers the gradients is then the last to hold the group of processes,
    and when it goes it waits for gloo's threads, which may wait for the interpreter (PyTorch's issue 56297).
    """
    atexit.register(_part)


def _part() -> None:
    gc.collect()  # models that refer to themselves
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
