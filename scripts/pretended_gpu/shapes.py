"""How many distinct shapes the batches of an epoch have, and how much of them is padding.

PyTorch builds attention plans, compiled graphs and captured steps for each shape.
"""

from dataclasses import dataclass

import numpy as np

from vaswani_transformer.data.batching import plan_updates, split_update
from vaswani_transformer.data.buckets import Buckets

LONGEST = 256  # tokens


@dataclass
class Shapes:
    """What the first updates of an epoch are like.

    Attributes:
        updates: how many were looked at.
        shapes: distinct (rows, source, target) of the process that meets most of them.
        real_share: of the tokens of both sides, over all processes, that are no padding.
    """

    updates: int
    shapes: int
    real_share: float


def draw_lengths(num_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of WMT 2014 English-German in tokens, of sources and targets."""
    rng = np.random.default_rng(0)
    sources = np.clip(rng.lognormal(3.25, 0.6, num_pairs), 2, LONGEST).astype(np.int32)
    targets = np.clip(sources * rng.lognormal(0.05, 0.2, num_pairs), 2, LONGEST).astype(np.int32)
    return sources, targets


def count_shapes(
    sources: np.ndarray,
    targets: np.ndarray,
    *,
    tokens_per_batch: int,
    num_processes: int,
    bucketed: bool,
    num_updates: int | None = None,
) -> Shapes:
    """The shapes of the first `num_updates` updates, or of all, of pairs of lengths `sources` and `targets`."""
    plan = plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0, bucketed=bucketed)
    buckets = Buckets(sources, targets, tokens_per_batch=tokens_per_batch)
    shapes: list[set] = [set() for _ in range(num_processes)]
    real = padded = 0
    for rows in plan[:num_updates]:
        if bucketed:
            num_rows, *widths = buckets.shape_of(sources[rows], targets[rows])
            parts = [(-(-num_rows // num_processes), *widths)] * num_processes
        else:
            split = split_update(rows, sources, targets, num_parts=num_processes)
            parts = [(len(part), int(sources[part].max()), int(targets[part].max())) for part in split if len(part)]
        for own, shape in zip(shapes, parts, strict=False):
            own.add(shape)
        real += int(sources[rows].sum() + targets[rows].sum())
        padded += sum(num_rows * (source + target) for num_rows, source, target in parts)
    return Shapes(len(plan[:num_updates]), max(map(len, shapes)), real / padded)
