"""A device "gpu" whose tensors keep their data on the CPU, and which counts what it is asked to do.

PyTorch lets one further device be defined outside it (PrivateUse1). This one is defined in Python: a `DeviceTensor`
says that it lies on "gpu:0" and holds an ordinary tensor, with which every operation is computed. Results are therefore
those of the CPU, while the project's code takes the branches that it takes on a GPU.

Defining a device is for the whole process and cannot be undone: `torch.accelerator` then answers "gpu". Import this
module in a process of its own.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import torch
from autocast import emulate_autocast
from counts import Counts, project_line, remembering_lines
from graph import RecordedCapture
from torch import nn
from torch.utils import backend_registration
from torch.utils._foreach_utils import _foreach_supported_types
from torch.utils._python_dispatch import TorchDispatchMode

from vaswani_transformer.model.engine_graphs_vaswani import CAPTURES

aten = torch.ops.aten
WAITS = {  # for their result, or for its size
    aten._local_scalar_dense, aten.equal, aten.is_nonzero,
    aten.nonzero, aten.masked_select, aten.bincount,
    aten._unique2, aten.unique_dim, aten.unique_consecutive,
}  # fmt: skip
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.addmm_}
FREE = {  # besides views: they start no kernel
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach, aten.alias,
    aten.lift_fresh, aten._unsafe_view, aten._reshape_alias, aten.set_, aten.is_pinned, aten._local_scalar_dense,
}  # fmt: skip
MASK_ALIGNMENT = 16  # keys; PyTorch's memory-efficient attention copies a mask of another length
MASK_CONVERSION = 3  # kernels that make a boolean mask additive


class _Module(backend_registration._DummyBackendModule):
    """What PyTorch looks up as `torch.gpu`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

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
    """A tensor on the pretended GPU; `host` is the tensor on the CPU that has its data."""

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> "DeviceTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=DEVICE,
        )

    def __init__(self, host: torch.Tensor):
        self.host = host

    def __repr__(self) -> str:
        return f"DeviceTensor({self.host!r})"

    def tolist(self) -> list:
        return self.cpu().tolist()  # PyTorch's own refuses subclasses

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Having this makes `Module.to` exchange a parameter's contents, so that tied weights stay tied."""
        return ["host"], None

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, torch.Tensor], *args) -> "DeviceTensor":
        return DeviceTensor(tensors["host"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _active[-1].run(func, args, kwargs or {})


class Stream:
    """What `torch.Stream` is elsewhere; there is one."""

    def __init__(self, device: torch.device):
        pass

    def record_event(self) -> "Event":
        return Event()


class Event:
    """What `torch.Event` is elsewhere. It comes at once, and as on a GPU no wait is counted for one of the past."""

    def __init__(self):
        self.num_operations = _active[-1].counts.operations.total()

    def synchronize(self) -> None:
        if _active[-1].counts.operations.total() == self.num_operations:  # nothing is left to compute meanwhile
            _active[-1].counts.waits["event", project_line()] += 1


class Capture(RecordedCapture):
    """Graphs of the pretended GPU: to start one is one operation, those inside are counted apart."""

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        gpu = _active[-1]
        outside, gpu.counts = gpu.counts, Counts()
        try:
            repeat_uncounted = super().__call__(step)
        finally:
            inside, gpu.counts = gpu.counts, outside
        if inside.waits or inside.copies or inside.mixed:
            raise RuntimeError(f"CUDA cannot capture waits, copies from the host or mixed devices: {inside}")
        gpu.counts.operations.update(inside.operations)  # CUDA computes a step once before its capture

        def repeat() -> torch.Tensor:
            outside, gpu.counts = gpu.counts, Counts()
            try:
                result = repeat_uncounted()
            finally:
                gpu.counts = outside
            gpu.counts.operations["graph", project_line()] += 1
            gpu.counts.captured.update(inside.operations)
            return result

        return repeat


class PretendedGpu(TorchDispatchMode):
    """In the block, "gpu" can be used like "cuda".

    Attributes:
        counts: of what was done so far.
    """

    def __init__(self):
        super().__init__()
        self.counts = Counts()
        self._pinned: set[int] = set()  # where the data of pinned tensors begin

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counts]:
        """The counts of the block alone."""
        before, self.counts = self.counts, Counts()
        try:
            with remembering_lines():
                yield self.counts
        finally:
            self.counts = before

    def __enter__(self) -> "PretendedGpu":
        super().__enter__()
        self._patches = contextlib.ExitStack()
        # A number or a list becomes a tensor on the CPU, which is then copied by an operation that comes past here.
        self._patches.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        self._patches.enter_context(emulate_autocast("gpu", DeviceTensor))
        self._patches.enter_context(mock.patch.object(nn.functional, "scaled_dot_product_attention", attend))
        self._patches.enter_context(mock.patch.object(torch.accelerator, "current_stream", Stream))
        self._patches.enter_context(mock.patch.dict(CAPTURES, {DEVICE.type: Capture}))
        _foreach_supported_types.append(DeviceTensor)
        self._patches.callback(_foreach_supported_types.remove, DeviceTensor)
        _active.append(self)
        return self

    def __exit__(self, *error) -> None:
        _active.remove(self)
        self._patches.close()
        super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func, args: tuple, kwargs: dict):
        """Compute one operation on the CPU, and count it if it is one of the device."""
        tensors = list(_tensors_of([*args, *kwargs.values()]))
        is_of_device = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        target = kwargs.get("device")
        is_result_on_device = is_of_device if target is None else torch.device(target).type == DEVICE.type
        if not is_of_device and not is_result_on_device:
            return self._run_on_host(func, args, kwargs)
        if torch.is_inference_mode_enabled() and func.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            with self:  # with gradients PyTorch takes such operations apart before they come here
                return func.decompose(*args, **kwargs)
        self._count(func, args, kwargs, tensors, is_result_on_device=is_result_on_device)
        result = func(*_to_host(args), **{name: _to_host(value) for name, value in kwargs.items()})
        if func._schema.is_mutable:
            return _changed(func._schema, args, kwargs)
        if not is_result_on_device:
            return result
        # A view of an ordinary tensor is an ordinary tensor in inference mode too.
        is_ordinary_view = func.is_view and not args[0].is_inference()
        with torch.inference_mode(False) if is_ordinary_view else contextlib.nullcontext():
            return _to_device(result)

    def _run_on_host(self, func, args: tuple, kwargs: dict):
        """An operation without the device; there are no pinned pages here, so they are only remembered."""
        if func is aten.is_pinned.default:
            return args[0].data_ptr() in self._pinned
        if func is aten._pin_memory.default:
            result = args[0].clone()
            self._pinned.add(result.data_ptr())
            return result
        return func(*args, **kwargs)

    def _count(self, func, args: tuple, kwargs: dict, tensors: list, *, is_result_on_device: bool) -> None:
        packet, line, counts = func.overloadpacket, project_line(), self.counts
        name = packet.__name__
        strangers = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
        if packet in (aten._to_copy, aten.copy_):
            is_blocking = not kwargs.get("non_blocking", packet is aten.copy_ and len(args) > 2 and args[2])
            is_to_device = isinstance(args[0], DeviceTensor) if packet is aten.copy_ else is_result_on_device
            if not is_to_device:
                if is_blocking:
                    counts.waits["copy to the host", line] += 1
                return
            if strangers:
                is_blocking = is_blocking or strangers[0].data_ptr() not in self._pinned
                counts.copies[is_blocking, line] += 1
                if is_blocking:
                    counts.waits["copy to the device", line] += 1
                return
        elif packet in INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                counts.waits["boolean index", line] += 1
            for _ in range(sum(not isinstance(index, DeviceTensor) for index in indices)):
                counts.copies[True, line] += 1
                counts.waits["index on the host", line] += 1
        elif any(stranger.dim() for stranger in strangers):
            counts.mixed[name, line] += 1
        if packet in WAITS or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
            counts.waits[name, line] += 1
        if not (func.is_view or packet in FREE):
            counts.operations[name, line] += 1
        if packet in PRODUCTS:
            counts.shapes[name, tuple(tuple(tensor.shape) for tensor in tensors)] += 1


def _changed(schema, args: tuple, kwargs: dict):
    """What an operation that wrote over one of its arguments returns: that argument."""
    outs = tuple(kwargs[argument.name] for argument in schema.arguments if argument.is_out)
    if not schema.returns:
        return None
    return args[0] if not outs else outs[0] if len(outs) == 1 else outs


def _tensors_of(values: Iterable) -> Iterator[torch.Tensor]:
    """The tensors among `values` and in lists among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_of(value)


def _to_host(value):
    """An argument as the CPU's kernels take it."""
    if isinstance(value, DeviceTensor):
        return value.host
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_host, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _to_device(value):
    """A result of the CPU's kernels with its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return DeviceTensor(value)
    return type(value)(map(_to_device, value)) if isinstance(value, (list, tuple)) else value


_attend_on_host = nn.functional.scaled_dot_product_attention


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """PyTorch's fused attention: one kernel forward and one backward, and what CUDA does to a mask before."""
    if not isinstance(query, DeviceTensor):
        return _attend_on_host(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled(DEVICE.type):
        dtype = torch.get_autocast_dtype(DEVICE.type)
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    counts, line = _active[-1].counts, project_line()
    counts.attention[attn_mask is not None, line] += 1
    counts.shapes["attention", (tuple(query.shape), tuple(key.shape), attn_mask is not None)] += 1
    counts.operations["attention", line] += 1
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            counts.operations["convert mask", line] += MASK_CONVERSION
        if key.shape[2] % MASK_ALIGNMENT:
            counts.operations["pad mask", line] += 1
    return _Attention.apply(
        query, key, value, attn_mask, {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    )


class _Attention(torch.autograd.Function):
    """Computed on the CPU, in the forward and again in the backward pass."""

    @staticmethod
    def forward(ctx, query, key, value, mask, options: dict) -> DeviceTensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.options = options
        host = (None if tensor is None else tensor.host for tensor in (query, key, value, mask))
        # As the GPU's kernels leave it: the features of all heads of a token lie side by side.
        return DeviceTensor(_attend_on_host(*host, **options).transpose(1, 2).contiguous().transpose(1, 2))

    @staticmethod
    def backward(ctx, gradient):
        *inputs, mask = ctx.saved_tensors
        _active[-1].counts.operations["attention backward", project_line()] += 1
        inputs = [tensor.host.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            context = _attend_on_host(*inputs, None if mask is None else mask.host, **ctx.options)
        gradients = torch.autograd.grad(context, inputs, gradient.host)
        return *map(DeviceTensor, gradients), None, None
