"""The mean of checkpoints (section 6.1)."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from .files import write_whole
from .runs import CARD_FILE, COMPLETE, TOKENIZER_FILES, UPDATE, WEIGHTS, check_checkpoint, read_update


def average_checkpoints(folders: Sequence[Path], output: Path) -> None:
    """Write to `output` the model whose weights are the mean of the weights in `folders` (section 6.1).

    The paper averages the last 5 (base) or 20 (big) checkpoints, written every ten minutes. Sums are taken in float64
    and cast back once. Everything beside the weights is copied from the last folder, except its card.

    Raises:
        ValueError: if `folders` is empty, if a checkpoint is damaged, or if shapes of weights or vocabularies differ.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average: train first.")
    sums = {}
    for folder in folders:
        if (folder / COMPLETE).exists():  # other models have no digests
            check_checkpoint(folder)
        weights = load_file(folder / WEIGHTS)
        sizes = {name: tensor.shape for name, tensor in weights.items()}
        sums = sums or {name: tensor.new_zeros(tensor.shape, dtype=torch.float64) for name, tensor in weights.items()}
        if sizes != {name: total.shape for name, total in sums.items()} or not _have_one_vocabulary(folder, folders[0]):
            raise ValueError(f"{folder} has another architecture or vocabulary than {folders[0]}: they have no mean.")
        for name, tensor in weights.items():
            sums[name] += tensor.double()
    output.mkdir(parents=True, exist_ok=True)
    for path in folders[-1].iterdir():
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE, CARD_FILE):
            shutil.copy(path, output / path.name)
    if (update := read_update(folders[-1])) is not None:
        (output / UPDATE).write_text(f"{update}\n")  # weights with more metadata vary in their bytes
    averaged = {name: (total / len(folders)).to(weights[name].dtype) for name, total in sums.items()}
    with write_whole(output / WEIGHTS) as file:
        file.write(save(averaged, metadata={"format": "pt"}))


def _have_one_vocabulary(folder: Path, other: Path) -> bool:
    files = [(folder / name, other / name) for name in TOKENIZER_FILES if (other / name).exists()]
    return all(one.exists() and one.read_bytes() == two.read_bytes() for one, two in files)
