"""Models of which each process holds a part only (FSDP)."""

import dataclasses

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from ..model.modeling_vaswani import VaswaniForConditionalGeneration


def is_sharded(accelerator: Accelerator) -> bool:
    """True if each process holds a part of the weights only: then Accelerate saves and loads them."""
    return accelerator.distributed_type == DistributedType.FSDP


def reduce_in_float32(accelerator: Accelerator) -> None:
    """Let the processes of FSDP add gradients in float32, as those of data parallelism do; else nothing changes.

    Accelerate would have them added in the precision of the forward pass, and an update would depend on how it is
    split.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    policy = None if plugin is None else plugin.mixed_precision_policy
    if policy is not None:
        # No output dtype: the loss stays in float32.
        plugin.mixed_precision_policy = dataclasses.replace(policy, reduce_dtype=torch.float32, output_dtype=None)


def gather_model(accelerator: Accelerator, model: torch.nn.Module) -> VaswaniForConditionalGeneration | None:
    """The whole model in the main process, `None` in the others; all processes must call it together."""
    whole = accelerator.unwrap_model(model)
    weights = accelerator.get_state_dict(model) if is_sharded(accelerator) else None
    if not accelerator.is_main_process:
        return None
    if weights is None:
        return whole
    with torch.device("meta"):  # draws no random numbers
        gathered = VaswaniForConditionalGeneration(whole.config)
    gathered.load_state_dict(weights, assign=True)
    gathered.tie_weights()
    gathered.generation_config = whole.generation_config
    return gathered
