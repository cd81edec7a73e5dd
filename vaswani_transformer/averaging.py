"""The mean of the last checkpoints of a run (section 6.1)."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save

from .files import write_whole
from .runs import CARD_FILE, COMPLETE, UPDATE, WEIGHTS, check_checkpoint, checkpoint_step


def average_checkpoints(folders: Sequence[Path], output: Path) -> None:
    """Write to `output` the model whose weights are the mean of those in `folders`, of one run (section 6.1).

    The paper averages the last 5 (base) or 20 (big) checkpoints, written every ten minutes. Sums are taken in float64
    and cast back once. Everything beside the weights is copied from the last folder, except its card.

    Raises:
        ValueError: if `folders` is empty, or a checkpoint is damaged.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average: train first.")
    sums = {}
    for folder in folders:
        if (folder / COMPLETE).exists():  # other models have no digests
            check_checkpoint(folder)
        weights = load_file(folder / WEIGHTS)
        for name, tensor in weights.items():
            sums[name] = sums.get(name, 0) + tensor.double()
    output.mkdir(parents=True, exist_ok=True)
    for path in folders[-1].iterdir():
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE, CARD_FILE):
            shutil.copy(path, output / path.name)
    (output / UPDATE).write_text(f"{checkpoint_step(folders[-1])}\n")  # weights with more metadata vary in their bytes
    averaged = {name: (total / len(folders)).to(weights[name].dtype) for name, total in sums.items()}
    with write_whole(output / WEIGHTS) as file:
        file.write(save(averaged, metadata={"format": "pt"}))
