"""Tests whether a module computes the function of its class, so that an engine may bypass its `forward`."""

import torch
from torch import nn
from transformers import GenerationMixin, modeling_utils
from transformers.utils import output_capturing

from ..model.configuration_vaswani import WEIGHT_KERNELS
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .products import find_private

# Modules that define the `forward` of a model's parts. Code saved beside weights does not count: it may be of another
# version.
SOURCES = (
    *(f"{__package__.partition('.')[0]}.", "torch.nn.modules.activation.", "torch.nn.modules.dropout."),
    "transformers.activations.",
)
FORWARDS = (nn.Linear.forward, nn.LayerNorm.forward, nn.Embedding.forward, nn.ModuleList.forward)
KERNELS = (*WEIGHT_KERNELS, "vaswani_half_precision")  # the last is that of training on CPUs
HARMLESS_HOOKS = (output_capturing.__name__, modeling_utils.__name__)  # modules of transformers that define them


def find_obstacle(model) -> str | None:
    """Return why an engine cannot compute the function of `model`, in words; `None` if it can."""
    if not isinstance(model, VaswaniForConditionalGeneration):
        return "it is of another class, or of code saved beside its weights"
    if model.training:
        return "it is in training mode, in which dropout acts; call model.eval()"
    if model.config.attention_window is not None:
        return "its attention is restricted to a window"
    if model.config._attn_implementation not in KERNELS:
        return f"an engine computes the attention of {KERNELS}, not of {model.config._attn_implementation!r}"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is enabled"
    if (has_hooks := find_private("has_global_hooks")) and has_hooks():
        return "a hook is registered for all modules"
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    if prepare is not GenerationMixin.prepare_inputs_for_generation:
        return "a subclass or an adapter prepares its inputs"
    return _find_change(model)


def _find_change(module: nn.Module, name: str = "") -> str | None:
    """Return the first module under `module` that does not compute the function of its class, in words."""
    if not is_plain(module):
        return f"{name or 'the model'} ({type(module).__name__}) has a hook, an adapter or another forward"
    for child_name, child in module.named_children():
        if merged_layer(child) is None and (change := _find_change(child, f"{name}.{child_name}".lstrip("."))):
            return change
    return None


def is_plain(module: nn.Module) -> bool:
    """Return True if no hook, subclass or compilation changes the result of a call of `module`.

    The hooks by which transformers records outputs stay on a module after the first recording, and do nothing between
    recordings; those of gradient checkpointing, on embeddings, only ask for gradients.
    """
    forward = type(module).forward
    is_known = forward in FORWARDS or f"{forward.__module__}.".startswith(SOURCES)
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return bool(
        is_known
        and "forward" not in vars(module)
        and module._compiled_call_impl is None
        and all(getattr(hook, "__module__", None) in HARMLESS_HOOKS for hook in hooks)
    )


def merged_layer(module: nn.Module) -> nn.Linear | None:
    """Return the layer inside a merged adapter of peft, which computes the same as the adapter."""
    layer = getattr(module, "base_layer", None)
    is_merged = getattr(module, "merged", False) and not getattr(module, "disable_adapters", True)
    return layer if is_merged and type(layer) is nn.Linear and is_plain(layer) else None
