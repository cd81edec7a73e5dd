"""One translation that is kept beside the weights, to check later that the model still translates in the same way."""

import json
from pathlib import Path

from ..files import blaming, read_object, write_json
from ..loading import Loaded, load
from ..runs import EXAMPLE_FILE
from .translator import Translator

SOURCE = "Two dogs are playing in the garden."
TOLERANCE = 1e-3  # The relative difference that a score may have, because processors round in different ways.


def compute_example(loaded: Loaded, source: str = SOURCE) -> dict[str, str | float]:
    """Return `source`, its translation by the `loaded` model, and the score of this translation in the search."""
    [[found]] = Translator(loaded.model, loaded.tokenizer, with_scores=True)([source])
    return {"source": source, "translation": found.text, "score": found.score}


def keep_example(folder: Path) -> None:
    """Translate the example with the model in `folder`, and write translation and score beside the weights."""
    write_json(folder / EXAMPLE_FILE, compute_example(load(folder, dtype="float32")))


def check_example(folder: Path) -> str:
    """Translate the example of the model in `folder` again; return a line with the source, translation and score.

    Raises:
        ValueError: if the translation or its score is not what it was when the model was saved.
        FileNotFoundError: if the folder has no example.
    """
    loaded = load(folder, dtype="float32")
    path = loaded.folder / EXAMPLE_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: vaswani train, average, convert and push write it when they end."
        )
    kept = read_object(path)
    with blaming(path):
        source, translation, score = kept["source"], kept["translation"], float(kept["score"])
    found = compute_example(loaded, source)
    difference = abs(found["score"] - score) / max(1.0, abs(score))
    if found["translation"] != translation or not difference <= TOLERANCE:
        raise ValueError(
            f"{folder} does not compute what it did when it was saved. Then: {json.dumps(kept, ensure_ascii=False)}; "
            f"now: {json.dumps(found, ensure_ascii=False)}. Compare the versions of transformers, or copy the model "
            f"again."
        )
    return f"{folder} translates as when it was saved: {source} -> {translation} ({score:.4f})"
