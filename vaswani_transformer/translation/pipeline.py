"""`pipeline("translation")` for models of this package, without trust_remote_code."""

from pathlib import Path

import transformers
from transformers import Pipeline, PreTrainedModel

from ..averaging import find_model_folder


def pipeline(
    task: str = "translation",
    model: str | Path | PreTrainedModel | None = None,
    tokenizer: object = None,
    **kwargs,
) -> Pipeline:
    """Build `transformers.pipeline`, which knows this package's task, of a run folder too.

    Args:
        model: a model folder, a run folder (its final model), a Hub id, or a model object (then give `tokenizer` too).
        kwargs: as of `transformers.pipeline`, such as `dtype`, `device`, `batch_size` or arguments of `generate()`.
    """
    if model is None:
        raise ValueError(f'task {task!r} has no default model: give model="folder or Hub id".')
    if isinstance(model, str | Path) and Path(model).is_dir():
        model = str(find_model_folder(Path(model)))
    # No code beside a model is run: transformers would ask for it on standard input.
    return transformers.pipeline(task, model, tokenizer=tokenizer, **kwargs | {"trust_remote_code": False})
