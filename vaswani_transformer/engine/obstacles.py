"""Obstacles: why an engine may not decode in place of a model's `forward`.

An engine computes what `forward` computes, but faster. The search checks this, see `Witness`. This module finds what
logits cannot show, such as a hook that only looks.
"""

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..model.configuration_vaswani import WEIGHT_KERNELS
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_vaswani import has_hooks, prepares_inputs
from .products import find_private


def find_obstacle(model) -> str | None:
    """Return in words why no engine may be built of `model`; `None` if an engine may be built."""
    if not isinstance(model, VaswaniForConditionalGeneration) or model.faster is None:
        return "its class is not of this package, or sets faster = None, or is loaded from code beside its weights"
    if model.config.attention_window is not None:
        return "its attention is restricted to a window"
    kernel = model.config._attn_implementation
    declares_equation_1 = getattr(ALL_ATTENTION_FUNCTIONS.get(kernel), "computes_equation_1", False)
    if kernel not in WEIGHT_KERNELS and not declares_equation_1:
        return f"its attention kernel {kernel!r} does not declare that it computes equation 1"
    if (has_global_hooks := find_private("has_global_hooks")) and has_global_hooks():
        return "a hook is registered for all modules"
    if prepares_inputs(model):
        return "a subclass or an adapter prepares its inputs"
    for name, module in model.named_modules():
        part = f"{name or 'the model'} ({type(module).__name__})"
        if module.training and type(module).forward is not nn.Module.forward:
            return f"{part} is in training mode, in which dropout acts; call model.eval()"
        is_changed = "forward" in vars(module) or module._compiled_call_impl is not None
        if is_changed or has_hooks(module) or "base_layer" in module._modules:  # an adapter of peft has a base layer
            return f"{part} has a hook, an adapter or another forward"
        if not all(x is None or (type(x) is nn.Parameter and not x.is_meta) for x in module._parameters.values()):
            return f"the weights of {part} are quantised, distributed or on another device"
    return "autocast is enabled" if torch.is_autocast_enabled(model.device.type) else None
