"""`pipeline("translation")` for models of this package, without trust_remote_code."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Pipeline, PreTrainedModel

from ..files import find_model_folder
from ..model.pipeline_vaswani import TRANSLATION_TASK, TranslationPipeline

# Arguments of `from_pretrained`: those that say where the files are, and others of a model.
PLACES = ("revision", "subfolder", "token", "cache_dir", "local_files_only")
OF_A_MODEL = ("attn_implementation", "config", "device_map", "quantization_config")


def pipeline(
    task: str = "translation",
    model: str | Path | PreTrainedModel | None = None,
    tokenizer: Any = None,
    *,
    dtype: str | torch.dtype | None = None,
    torch_dtype: str | torch.dtype | None = None,
    model_kwargs: dict | None = None,
    **kwargs,
) -> Pipeline:
    """`transformers.pipeline`, with "translation" and "translation_xx_to_yy" working for models of this package.

    Args:
        task: any other task is handed to transformers.
        model: a model folder, a run folder (its final model), a Hub id, or a model object (then give `tokenizer` too).
        tokenizer: folder, Hub id or object; that of `model` when not given.
        dtype: of the model: "float32", "bfloat16", ...
        torch_dtype: the same, by its name in transformers v4.
        model_kwargs: whatever else is for `from_pretrained`; what says where to find files is the tokenizer's too.
        kwargs: as of `transformers.pipeline`; for `from_pretrained`, as `device_map`, `revision`, `token` or
            `attn_implementation`, or for the pipeline, as `device`, `batch_size` or arguments of `generate()`.

    Raises:
        ValueError: if there is no model, or no tokenizer for a model object.
    """
    model_kwargs, dtype = dict(model_kwargs or {}), torch_dtype if dtype is None else dtype
    if dtype is not None:
        model_kwargs["dtype"] = dtype
    model, tokenizer = (str(find_model_folder(x)) if isinstance(x, Path) else x for x in (model, tokenizer))
    if not TRANSLATION_TASK.fullmatch(task):
        kwargs.setdefault("trust_remote_code", False)  # otherwise transformers asks on standard input
        return transformers.pipeline(task, model, tokenizer=tokenizer, model_kwargs=model_kwargs, **kwargs)
    if model is None:
        raise ValueError(f'task {task!r} has no default model: give model="folder or Hub id".')
    model_kwargs |= {name: kwargs.pop(name) for name in (*PLACES, *OF_A_MODEL) if name in kwargs}
    for name in ("trust_remote_code", "use_fast"):  # code is this package's, and its tokenizers are fast
        kwargs.pop(name, None)
        model_kwargs.pop(name, None)
    if isinstance(model, str):
        model = str(find_model_folder(Path(model))) if Path(model).is_dir() else model
    if tokenizer is None:
        if not isinstance(model, str):
            raise ValueError("a model object brings no tokenizer: give tokenizer= too.")
        tokenizer = model
    if isinstance(tokenizer, str):
        places = {name: value for name, value in model_kwargs.items() if name in PLACES}
        tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False, **places)
    if isinstance(model, str):
        model = AutoModelForSeq2SeqLM.from_pretrained(model, trust_remote_code=False, **model_kwargs)
    return TranslationPipeline(model=model, tokenizer=tokenizer, task=task, **kwargs)
