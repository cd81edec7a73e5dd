"""Explanations for a training run that has gone wrong: out of memory or of disk, or no longer finite."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, Update
from ..memory import is_out_of_memory

# PyTorch's errors have no class of their own where a file cannot be written, but say one of these.
TORCH_WRITE_ERRORS = ("PytorchStreamWriter failed", "unexpected pos")


@contextmanager
def explain_out_of_memory(batch: dict[str, torch.Tensor]) -> Iterator[None]:
    """Re-raise PyTorch's errors for memory, which name bytes only, as a MemoryError with the shape of `batch`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        num_pairs, source_length = batch["input_ids"].shape
        raise MemoryError(
            f"out of memory in a micro-batch of {num_pairs} pairs, padded to {source_length} source and "
            f"{batch['labels'].shape[1]} target tokens. Raise accumulation_steps, which changes no result, or "
            f"lower the recipe's tokens_per_batch. ({str(error).splitlines()[0]})"
        ) from error


def is_write_error(error: Exception) -> bool:
    """True if `error` says that a file could not be written, as on a full disk; each library has its own."""
    if isinstance(error, RuntimeError):
        return any(text in str(error) for text in TORCH_WRITE_ERRORS)
    return isinstance(error, OSError | SafetensorError)


def find_non_finite(model: nn.Module, batch: dict[str, torch.Tensor]) -> str | None:
    """Name the first place in a forward and backward pass of `batch` that is not finite; `None` if all is finite.

    That is a module by its output, else "the loss", else "the gradient of" a parameter. Leaves no gradients.
    """
    found: list[str] = []

    def look(name: str):
        def hook(module: nn.Module, inputs: tuple, output: object) -> None:
            tensors = output if isinstance(output, tuple) else (output,)
            tensors = [value for value in tensors if isinstance(value, torch.Tensor) and value.is_floating_point()]
            if any(not value.isfinite().all() for value in tensors):
                found.append(name)

        return hook

    # A module's hook runs when it is done, so the innermost of nested modules is found first. With one at the
    # projection to words the loss would need the logits of all tokens, for which there may be no memory.
    modules = [(name, module) for name, module in model.named_modules() if name and name != "lm_head"]
    handles = [module.register_forward_hook(look(name)) for name, module in modules]
    try:
        loss = model(**batch, num_items_in_batch=1).loss  # the part of a process without pairs has no tokens
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if not loss.isfinite():
        return "the loss"
    model.zero_grad()
    loss.backward()
    gradients = [(name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None]
    bad = [name for name, gradient in gradients if not gradient.isfinite().all()]
    model.zero_grad()
    return f"the gradient of {bad[0]}" if bad else None


def describe_batch(
    model: nn.Module, update: Update, pairs: TokenizedPairs, tokenizer: PreTrainedTokenizerFast
) -> list[dict[str, object]]:
    """For each micro-batch of `update` the answer of `find_non_finite`, and its pairs as row number and texts."""
    report = []
    for rows, batch in zip(update.rows, update.micro_batches, strict=True):
        first = find_non_finite(model, {name: tensor.to(model.device) for name, tensor in batch.items()})
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        texts = [[int(row), decode(pairs.sources[row]), decode(pairs.targets[row])] for row in rows]
        report.append({"first_non_finite": first, "pairs": texts})
    return report
