"""Models of which each process holds a part only (FSDP)."""

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from ..model.modeling_vaswani import VaswaniForConditionalGeneration


def is_sharded(accelerator: Accelerator) -> bool:
    """True if each process holds a part of the weights only: then Accelerate saves and loads them."""
    return accelerator.distributed_type == DistributedType.FSDP


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
