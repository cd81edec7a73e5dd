"""A device "gpu" that counts its operations. Its tensors keep their data on the CPU.

PyTorch allows other packages to define one further device (PrivateUse1). This device is defined in Python. A
`DeviceTensor` says that it lies on "gpu:0", and holds an ordinary tensor, with which every operation is computed. So
the CPU computes the results, while the project's code takes the branches for a GPU. Import this file in a separate
process, because the device stays defined until the process ends.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.utils import backend_registration
from torch.utils._foreach_utils import _foreach_supported_types
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = Path(__file__).resolve().parents[2] / "vaswani_transformer"
aten = torch.ops.aten
WAITS = {  # operations after which the host waits, for the result or for its size
    aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.nonzero, aten.masked_select, aten.bincount,
    aten._unique2, aten.unique_dim, aten.unique_consecutive,
}  # fmt: skip
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
FREE = {  # operations that start no kernel; views start none either
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach, aten.alias,
    aten.lift_fresh, aten._unsafe_view, aten._reshape_alias, aten.set_, aten.is_pinned, aten._local_scalar_dense,
}  # fmt: skip


def project_line() -> str:
    """Return the innermost running line of the package, as `folder/file.py:12 function`.

    PyTorch's backward pass runs in a separate thread, in which no line of the package is running. In that thread, the
    name of the backward step is returned.
    """
    frame = sys._getframe(1)
    root = f"{PACKAGE}/"
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(root):
            return f"{code.co_filename.removeprefix(root)}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    return f"backward: {node.name()}" if node else "elsewhere"


@dataclass
class Counts:
    """Events, each counted under (kind, line of the project). `Counter.total()` gives their number.

    Attributes:
        operations: operations for which a GPU would have to start a kernel.
        waits: waits of the host for the device, blocking copies included.
        copies: copies from host to device, blocking or not.
        mixed: operations that CUDA would refuse, because they mix tensors of the host and of the device.
    """

    operations: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    copies: Counter = field(default_factory=Counter)
    mixed: Counter = field(default_factory=Counter)

    def minus(self, other: "Counts") -> "Counts":
        """Return these events without the events of `other`."""
        return Counts(**{name: events - getattr(other, name) for name, events in vars(self).items()})


class _Module(backend_registration._DummyBackendModule):
    """The module of the device, which PyTorch finds as `torch.gpu`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, *args) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, *args) -> None:
        pass

    def synchronize(self, *args) -> None:
        if _active:
            _active[-1].counts.waits["synchronize", project_line()] += 1


backend_registration._setup_privateuseone_for_python_backend("gpu", backend_module=_Module())
DEVICE = torch.device("gpu:0")
_active: list["PretendedGpu"] = []


class DeviceTensor(torch.Tensor):
    """A tensor on the pretended GPU. `host` is the tensor on the CPU that holds its data."""

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> "DeviceTensor":
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset(), "layout": host.layout}
        return torch.Tensor._make_wrapper_subclass(cls, host.size(), dtype=host.dtype, device=DEVICE, **layout)

    def __init__(self, host: torch.Tensor):
        self.host = host

    def tolist(self) -> list:
        return self.cpu().tolist()  # `tolist()` of PyTorch refuses subclasses

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Return the names of the inner tensors, and no further context.

        If a class has this method and `__tensor_unflatten__`, `Module.to` keeps each parameter and swaps the tensor in
        it, instead of making a new parameter. So tied weights stay tied.
        """
        return ["host"], None

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, torch.Tensor], *args) -> "DeviceTensor":
        return DeviceTensor(tensors["host"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _active[-1].__torch_dispatch__(func, types, args, kwargs)


class PretendedGpu(TorchDispatchMode):
    """A context manager. In its block, "gpu" can be used like "cuda".

    Attributes:
        counts: the events since the last call of `take_counts`.
    """

    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def take_counts(self) -> Counts:
        """Return the counts and begin new ones."""
        counts, self.counts = self.counts, Counts()
        return counts

    def __enter__(self) -> "PretendedGpu":
        super().__enter__()
        self._patches = contextlib.ExitStack()
        # With this setting, a number or a list becomes a tensor on the CPU. The operation that copies it to the device
        # then passes through `__torch_dispatch__`.
        self._patches.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        self._patches.enter_context(mock.patch.object(nn.functional, "scaled_dot_product_attention", attend))
        _foreach_supported_types.append(DeviceTensor)
        self._patches.callback(_foreach_supported_types.remove, DeviceTensor)
        _active.append(self)
        return self

    def __exit__(self, *error) -> None:
        _active.remove(self)
        self._patches.close()
        super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Compute one operation on the CPU, and count it if it takes or returns a tensor of the device."""
        kwargs = kwargs or {}
        tensors = list(_tensors_of([*args, *kwargs.values()]))
        is_of_device = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        target = kwargs.get("device")
        is_result_on_device = is_of_device if target is None else torch.device(target).type == DEVICE.type
        if not is_of_device and not is_result_on_device:
            # Memory cannot be pinned without a GPU, so it is copied instead.
            return args[0].clone() if func is aten._pin_memory.default else func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and func.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            with self:  # outside inference mode, PyTorch decomposes such operations before it calls this method
                return func.decompose(*args, **kwargs)
        self._count(func, args, kwargs, tensors, is_result_on_device=is_result_on_device)
        result = func(*_to_host(args), **{name: _to_host(value) for name, value in kwargs.items()})
        if func._schema.is_mutable:
            return _changed(func._schema, args, kwargs)
        if not is_result_on_device:
            return result
        # Even in inference mode, a view of a tensor that is no inference tensor is no inference tensor.
        is_normal_view = func.is_view and not args[0].is_inference()
        with torch.inference_mode(False) if is_normal_view else contextlib.nullcontext():
            return _to_device(result)

    def _count(self, func, args: tuple, kwargs: dict, tensors: list, *, is_result_on_device: bool) -> None:
        packet = func.overloadpacket
        line = project_line()
        counts = self.counts
        name = packet.__name__
        host_tensors = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
        if packet in (aten._to_copy, aten.copy_):
            is_blocking = not kwargs.get("non_blocking", packet is aten.copy_ and len(args) > 2 and args[2])
            is_to_device = isinstance(args[0], DeviceTensor) if packet is aten.copy_ else is_result_on_device
            if host_tensors or not is_to_device:  # otherwise it is a copy within the device
                if is_blocking:
                    counts.waits[f"copy to the {'device' if is_to_device else 'host'}", line] += 1
                if is_to_device:
                    counts.copies[name, line] += 1
                return
        elif packet in INDEXING:
            for index in [index for index in args[1] if index is not None]:
                if index.dtype in (torch.bool, torch.uint8):
                    counts.waits["boolean index", line] += 1
                if not isinstance(index, DeviceTensor):
                    counts.waits["index on the host", line] += 1
        elif any(tensor.dim() for tensor in host_tensors):
            counts.mixed[name, line] += 1
        if packet in WAITS or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
            counts.waits[name, line] += 1
        if not (func.is_view or packet in FREE):
            counts.operations[name, line] += 1


def _changed(schema, args: tuple, kwargs: dict):
    """Return what an operation that changes its arguments returns: the changed argument, or None."""
    outs = tuple(kwargs[argument.name] for argument in schema.arguments if argument.is_out)
    if not schema.returns:
        return None
    return args[0] if not outs else outs[0] if len(outs) == 1 else outs


def _tensors_of(values: Iterable) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_of(value)


def _to_host(value):
    """Return an argument of an operation for the CPU: tensors become CPU tensors, and a device becomes the CPU."""
    if isinstance(value, DeviceTensor):
        return value.host
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_host, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _to_device(value):
    """Return a result of the CPU with all its tensors on the pretended GPU."""
    if isinstance(value, torch.Tensor):
        return DeviceTensor(value)
    return type(value)(map(_to_device, value)) if isinstance(value, (list, tuple)) else value


_attend_on_host = nn.functional.scaled_dot_product_attention


def attend(query, *args, **kwargs):
    """Return PyTorch's fused attention, counted as one kernel forward and one backward."""
    if not isinstance(query, DeviceTensor):
        return _attend_on_host(query, *args, **kwargs)
    _active[-1].counts.operations["attention", project_line()] += 1
    return _Attention.apply(query, kwargs, *args)


class _Attention(torch.autograd.Function):
    """Attention, computed on the CPU. The backward pass computes it once more, to get its gradients."""

    @staticmethod
    def forward(ctx, query, options: dict, *others) -> DeviceTensor:
        ctx.inputs = _to_host((query, *others))
        ctx.options = {name: _to_host(value) for name, value in options.items()}
        # The result lies in memory as the kernels of a GPU leave it: the heads of a token lie side by side.
        return DeviceTensor(_attend_on_host(*ctx.inputs, **ctx.options).transpose(1, 2).contiguous().transpose(1, 2))

    @staticmethod
    def backward(ctx, gradient):
        _active[-1].counts.operations["attention backward", project_line()] += 1
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.inputs[:3]]
        with torch.enable_grad():
            context = _attend_on_host(*inputs, *ctx.inputs[3:], **ctx.options)
        query, *others = map(DeviceTensor, torch.autograd.grad(context, inputs, gradient.host))
        return query, None, *others, *[None] * (len(ctx.inputs) - 3)
