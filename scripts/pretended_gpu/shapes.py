"""How many distinct shapes the batches of an epoch have, and how much of them is padding.

PyTorch builds attention plans, compiled graphs and captured steps for each shape.
"""

from dataclasses import dataclass

import numpy as np

from vaswani_transformer.data.batching import plan_updates, split_update

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
    sources: np.ndarray, targets: np.ndarray, *, tokens_per_batch: int, num_updates: int, num_processes: int
) -> Shapes:
    """The shapes of the first `num_updates` updates of pairs of lengths `sources` and `targets`."""
    updates = plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0)[:num_updates]
    shapes: list[set] = [set() for _ in range(num_processes)]
    real = padded = 0
    for rows in updates:
        for own, part in zip(shapes, split_update(rows, sources, targets, num_parts=num_processes), strict=True):
            if not len(part):
                continue
            shape = len(part), int(sources[part].max()), int(targets[part].max())
            own.add(shape)
            real += int(sources[part].sum() + targets[part].sum())
            padded += shape[0] * (shape[1] + shape[2])
    return Shapes(len(updates), max(map(len, shapes)), real / padded)
