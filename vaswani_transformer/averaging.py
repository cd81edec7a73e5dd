"""The mean of checkpoints (section 6.1)."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save

from .files import digest_files, read_object, write_whole
from .runs import CARD_FILE, COMPLETE, TOKENIZER_FILES, UPDATE, WEIGHTS, check_checkpoint, read_update


def average_checkpoints(folders: Sequence[Path], output: Path) -> None:
    """Write into the folder `output` the model whose weights are the mean of the weights in `folders` (section 6.1).

    The paper averages the last 5 (base) or 20 (big) checkpoints, which are written every ten minutes. The weights are
    added in float64. Their mean is cast once, to the dtype of the weights. The other files are copied from the last
    folder, except the model card and the digests.

    Raises:
        ValueError: if `folders` is empty, if a checkpoint is damaged, or if the models differ in their vocabularies or
            in the shapes of their weights.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average: train until the run has one.")
    sums = {}
    first = None
    for folder in folders:
        if (folder / COMPLETE).exists():  # Only checkpoints have digests.
            check_checkpoint(folder)
        weights = load_file(folder / WEIGHTS)
        kind = {name: tensor.shape for name, tensor in weights.items()} | _read_vocabulary(folder)
        first = first or kind
        if kind != first:
            raise ValueError(
                f"{folder} has another architecture or vocabulary than {folders[0]}: leave one of them out."
            )
        for name, tensor in weights.items():
            sums[name] = sums.get(name, 0) + tensor.double()
    output.mkdir(parents=True, exist_ok=True)
    for path in folders[-1].iterdir():
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE, CARD_FILE):
            shutil.copy(path, output / path.name)
    if (update := read_update(folders[-1])) is not None:
        # The number of updates gets a separate file. safetensors writes the entries of its metadata in random order, so
        # a second entry in the file of the weights would make the bytes of that file vary.
        (output / UPDATE).write_text(f"{update}\n")
    averaged = {name: (total / len(folders)).to(weights[name].dtype) for name, total in sums.items()}
    with write_whole(output / WEIGHTS) as file:
        file.write(save(averaged, metadata={"format": "pt"}))


def _read_vocabulary(folder: Path) -> dict[str, object]:
    """Return the tokenizer files in `folder` by their names: the content of tokenizer.json, the digest of another file.

    A tokenizer.json also records how texts were last padded and cut. These two records are not part of the vocabulary,
    so `None` replaces them.
    """
    found = digest_files(folder, [folder / name for name in TOKENIZER_FILES])
    if "tokenizer.json" in found:
        found["tokenizer.json"] = read_object(folder / "tokenizer.json") | {"padding": None, "truncation": None}
    return found
