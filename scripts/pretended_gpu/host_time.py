"""Processor time of one update on the CPU, part by part: widths are tiny, so most of it is Python and PyTorch's calls.

What the project does differently on a CPU, for the sake of its kernels, is switched off: a GPU's host does not do it.
"""

import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from torch import nn
from work import build_trainer, find_update

from vaswani_transformer.model import cpu_vaswani, layers_vaswani, masks_vaswani

PARTS = ("forward", "loss", "backward", "optimizer", "rest", "update")
WARM_UPDATES = 3


def measure_update(recipe_name: str, *, mixed_precision: str, num_updates: int) -> dict[str, float]:
    """Milliseconds of processor time of the parts of an update, each the median of `num_updates`.

    Returns:
        under the names of `PARTS`: the forward pass without the loss; the loss, which includes
        its gradients; the rest of the backward pass; the optimizer's step; what is left; and all of it.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as patches:
        _take_gpu_branches(patches)
        trainer = build_trainer(recipe_name, Path(folder), device="cpu", mixed_precision=mixed_precision)
        update = find_update(trainer, is_padded=True)
        # Two pairs, the shortest and the longest: half precision on a CPU takes long even for a hundred tokens.
        update.micro_batches = [{name: x[[0, -1]] for name, x in batch.items()} for batch in update.micro_batches]
        spent: dict[str, float] = defaultdict(float)
        measured = {
            "forward": (trainer.model, "forward"),
            "loss": (trainer.model, "_sum_loss"),
            "backward": (trainer.accelerator, "backward"),
            "optimizer": (trainer.optimizer, "step"),
            "update": (trainer, "_run_update"),
        }
        for part, (owner, name) in measured.items():
            patches.enter_context(mock.patch.object(owner, name, _timed(getattr(owner, name), spent, part)))
        rows = []
        for _ in range(WARM_UPDATES + num_updates):
            spent.clear()
            trainer._run_update(update)
            spent["forward"] -= spent["loss"]
            spent["rest"] = 2 * spent["update"] - sum(spent.values())
            rows.append(dict(spent))
    return {part: 1000 * statistics.median(row[part] for row in rows[WARM_UPDATES:]) for part in PARTS}


def _take_gpu_branches(patches: contextlib.ExitStack) -> None:
    for owner, name, value in (
        (cpu_vaswani.Dropout, "forward", nn.Dropout.forward),
        (layers_vaswani, "prefers_equation_1", lambda query, key: False),
        (masks_vaswani, "_may_skip_masks", lambda x, is_training: False),
    ):
        patches.enter_context(mock.patch.object(owner, name, value))


def _timed(function: Callable, spent: dict[str, float], part: str) -> Callable:
    def call(*args, **kwargs):
        started = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[part] += time.process_time() - started

    return call
