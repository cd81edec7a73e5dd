"""Obstacles: why an engine may not decode in place of a model's `forward`.

An engine computes what `forward` computes, but faster. Every engine is compared with `forward` on made-up sentences.
This module finds obstacles that the comparison cannot show.
"""

import torch
from torch import Tensor, nn
from transformers import modeling_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import output_capturing

from ..model import layers_vaswani
from ..model.configuration_vaswani import WEIGHT_KERNELS
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_vaswani import prepares_inputs
from .products import find_private

# The modules of transformers that define harmless hooks, see `is_plain`.
HARMLESS_HOOKS = (output_capturing.__name__, modeling_utils.__name__)

# The attributes in which PyTorch keeps the weights, hooks and mode of any module.
BOOKKEEPING = vars(nn.Module()).keys()


def find_obstacle(model) -> str | None:
    """Return in words why no engine may be built of `model`; `None` if an engine may be built."""
    if not isinstance(model, VaswaniForConditionalGeneration) or model.find_engine is None:
        return "its class is not of this package, or sets find_engine = None, or is loaded from code beside its weights"
    if model.training:
        return "it is in training mode, in which dropout acts; call model.eval()"
    if model.config.attention_window is not None:
        return "its attention is restricted to a window"
    kernel = model.config._attn_implementation
    declares_equation_1 = getattr(ALL_ATTENTION_FUNCTIONS.get(kernel), "computes_equation_1", False)
    if kernel not in WEIGHT_KERNELS and not declares_equation_1:
        return f"its attention kernel {kernel!r} does not declare that it computes equation 1"
    if (has_hooks := find_private("has_global_hooks")) and has_hooks():
        return "a hook is registered for all modules"
    if prepares_inputs(model):
        return "a subclass or an adapter prepares its inputs"
    if change := _find_change(model):
        return change
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is enabled"
    return None


def _find_change(module: nn.Module, name: str = "") -> str | None:
    """Return in words which part of `module` an engine cannot reproduce, and why; `None` if there is no such part."""
    if not is_plain(module):
        return f"{name or 'the model'} ({type(module).__name__}) has a hook, an adapter or another forward"
    if not all(x is None or (type(x) is nn.Parameter and not x.is_meta) for x in module._parameters.values()):
        kind = type(module).__name__
        return f"the weights of {name or 'the model'} ({kind}) are quantised, distributed or on another device"
    for child_name, child in module.named_children():
        if change := _find_change(child, f"{name}.{child_name}".lstrip(".")):
            return change
    return None


def is_plain(module: nn.Module) -> bool:
    """Return True if no hook, adapter or compilation changes the result of a call of `module`.

    transformers leaves two kinds of harmless hooks on modules. Hooks that record outputs do nothing between recordings.
    Hooks of gradient checkpointing, on embeddings, only ask for gradients.
    """
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return bool(
        "forward" not in vars(module)
        and "base_layer" not in module._modules  # an adapter of peft
        and module._compiled_call_impl is None
        and all(getattr(hook, "__module__", None) in HARMLESS_HOOKS for hook in hooks)
    )


def describe_state(model: VaswaniForConditionalGeneration) -> list:
    """Return what determines the results of `model`: its config, the code of its layers, their weights and attributes.

    Addresses and versions stand for the weights. PyTorch raises the version of a weight at each change in place, but
    not at a change through `.data`, see `sum_weights`. The state holds no module, so that the model can be freed.
    """
    kernel = ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation)
    state = [kernel, dict(vars(model.config)), *vars(layers_vaswani).values()]
    for module in model.modules():
        own = [_describe(x) for name, x in vars(module).items() if name not in BOOKKEEPING]
        weights = [_describe(x) for x in (*module._parameters.values(), *module._buffers.values())]
        state.append((type(module), type(module).forward, own, weights))
    return state


def _describe(value: object) -> object:
    """Return what tells `value` from a later value at the same place.

    Returns:
        address and version of a tensor, a container as text, a number or text itself, and the id of any other object.
    """
    if isinstance(value, Tensor):
        return value.data_ptr(), 0 if value.is_inference() else value._version
    if isinstance(value, tuple | list | set | dict):
        return repr(value)
    return value if isinstance(value, int | float | str) else id(value)


def sum_weights(model: VaswaniForConditionalGeneration) -> list[float]:
    """Return for each weight of `model` the sum of its entries.

    A change through `.data` changes the sum, unless the changes of the entries cancel each other.
    """
    return torch.stack([weight.sum(dtype=torch.float32) for weight in model.parameters()]).tolist()
