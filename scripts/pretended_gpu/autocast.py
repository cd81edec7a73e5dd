"""CUDA's autocast for the pretended GPU: which operations cast their arguments, as far as this model meets them."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_map

KEY = torch._C.DispatchKey.AutocastPrivateUse1
LOW_PRECISION = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm")
FLOAT32 = ("layer_norm", "native_layer_norm", "pow.Tensor_Scalar", "logsumexp", "softmax.int", "log_softmax.int")

_libraries = [Library("_", "IMPL", "AutocastPrivateUse1"), Library("aten", "IMPL")]
_libraries[0].fallback(fallthrough_kernel)
_casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of weights, until autocast ends


@contextlib.contextmanager
def emulate_autocast(device: str, tensor_class: type) -> Iterator[None]:
    """In the block, casts of weights are forgotten where `torch.autocast` forgets those of CUDA."""
    _registered.update(device=device, tensor_class=tensor_class)
    with mock.patch.object(torch, "clear_autocast_cache", _casts.clear):
        yield


_registered: dict = {}


def _cast(value, dtype: torch.dtype):
    """`value` in `dtype` if it is a tensor that CUDA's autocast would cast; a weight is cast once."""
    if not isinstance(value, _registered["tensor_class"]) or not value.is_floating_point():
        return value
    if value.dtype in (dtype, torch.float64):
        return value
    if not (value.is_leaf and value.requires_grad and value.dtype == torch.float32 and dtype != torch.float32):
        return value.to(dtype)
    if id(value) not in _casts:
        _casts[id(value)] = (value, value.to(dtype))
    return _casts[id(value)][1]


def _register(name: str, *, is_low: bool) -> None:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def call(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            dtype = torch.get_autocast_dtype(_registered["device"]) if is_low else torch.float32
            return operation(*tree_map(lambda value: _cast(value, dtype), args), **kwargs)

    _libraries[1].impl(name, call, "AutocastPrivateUse1")


for _name in LOW_PRECISION:
    _register(_name, is_low=True)
for _name in FLOAT32:
    _register(_name, is_low=False)
