"""Matrix products of an engine: float32 and bfloat16, packed on CPUs, and integers of 8 bits.

PyTorch's private names are looked up when an engine is built, never at import; where PyTorch lacks one, its public
functions multiply.
"""

import operator
import platform
import threading
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import nn

ONEDNN_MACHINES = ("x86_64", "AMD64")  # where its products were measured
PRIVATE_NAMES = {  # of torch
    "reorder": "ops.mkldnn._reorder_linear_weight",
    "multiply": "ops.mkldnn._linear_pointwise",
    "has_bfloat16": "ops.mkldnn._is_mkldnn_bf16_supported",
    "quantise": "_make_per_channel_quantized_tensor",
    "has_tiles": "cpu._is_amx_tile_supported",
    "has_vnni": "cpu._is_vnni_supported",
    "has_global_hooks": "nn.modules.module._has_any_global_hook",
}
MANY_WORDS = 4_096  # of a vocabulary: MKL multiplies few rows by so many columns three times as fast transposed
QUANTISATION_LOCK = threading.Lock()

Product = Callable[[torch.Tensor], torch.Tensor]


class Products:
    """Matrix products of an engine, by PyTorch's own kernels; subclasses multiply in other ways.

    Args:
        dtype: of the matrices that are multiplied with.
        copies: without, those of a model in `dtype` are read as they are, for a search that ends before they change.
    """

    def __init__(self, dtype: torch.dtype, *, copies: bool = True):
        self.dtype, self.copies = dtype, copies

    def one(self, layer: nn.Linear, *, relu: bool = False) -> Product:
        """The product (..., D) -> (..., F) with `layer`; max(0, x) of it if `relu`."""
        return self.build(self._prepare(layer.weight), self._prepare(layer.bias), relu=relu)

    def several(self, *layers: nn.Linear) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
        """The products of one input with `layers`, which all have a bias or all have none."""
        biases = [layer.bias for layer in layers]
        bias = None if biases[0] is None else torch.cat(biases)
        product = self.build(self._prepare(torch.cat([layer.weight for layer in layers])), self._prepare(bias))
        sizes = [len(layer.weight) for layer in layers]
        return lambda x: product(x).split(sizes, dim=-1)

    def adding(self, layer: nn.Linear) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The product of x (rows, D) with `layer`, added to `residual` (rows, F): of both, (rows, F)."""
        if layer.bias is None and type(self) is Products:
            weight = self._prepare(layer.weight).t()
            return lambda x, residual: torch.addmm(residual, x, weight)
        product = self.one(layer)
        return lambda x, residual: residual + product(x)

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool = False) -> Product:
        """The product with `weight` (F, D) and `bias` (F,), which is not written to."""
        if relu:
            return lambda x: nn.functional.linear(x, weight, bias).relu_()
        if bias is None and len(weight) >= MANY_WORDS and weight.device.type == "cpu":
            return lambda x: torch.mm(weight, x.t()).t().contiguous()
        return lambda x: nn.functional.linear(x, weight, bias)

    def keep(self, parameter: torch.Tensor | None) -> torch.Tensor | None:
        """A copy of `parameter`, or itself."""
        return None if parameter is None else parameter.detach().to(self.dtype, copy=self.copies)

    def _prepare(self, parameter: torch.Tensor | None) -> torch.Tensor | None:
        """A matrix or a bias as `build` takes it."""
        return self.keep(parameter)


class PackedProducts(Products):
    """In float32 or bfloat16 with matrices in the order in memory that oneDNN's kernels read.

    PyTorch multiplies float32 with MKL on x86-64, which lays the matrix out again for every product. A search
    multiplies few rows by the same matrices again and again: on an AMD processor, two threads, 512 x 10,000 by 4 rows
    took 1,289 microseconds so and 165 with the matrix packed, by 256 rows 14,689 and 6,018; in bfloat16 218 and 90,
    4,222 and 3,284.
    """

    def __init__(self, dtype: torch.dtype):
        super().__init__(dtype)
        self.reorder, self.multiply = find_private("reorder"), find_private("multiply").default

    @staticmethod
    def suit(dtype: torch.dtype) -> bool:
        """True where oneDNN is there and multiplies in `dtype`."""
        mkldnn, has_bfloat16 = torch.backends.mkldnn, find_private("has_bfloat16")
        is_ready = mkldnn.is_available() and mkldnn.enabled and platform.machine() in ONEDNN_MACHINES
        if not is_ready or find_private("reorder") is None or find_private("multiply") is None:
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16 is not None and has_bfloat16())

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool = False) -> Product:
        multiply, packed = self.multiply, self.reorder(weight.contiguous())
        activation = "relu" if relu else "none"
        return lambda x: multiply(x, packed, bias, activation, [], "")

    def _prepare(self, parameter: torch.Tensor | None) -> torch.Tensor | None:
        is_matrix = parameter is not None and parameter.dim() == 2
        return parameter.detach().to(self.dtype) if is_matrix else self.keep(parameter)  # packing copies a matrix


class Int8Products(Products):
    """In integers of 8 bits, with one scale per row of the matrix, and one per input tensor, computed at each call.

    Results differ from float32 by about 1 %, and a little with what shares the batch.
    """

    def __init__(self):
        super().__init__(torch.float32)
        self.quantise = find_private("quantise")
        has_tiles, has_vnni = (find_private(name) for name in ("has_tiles", "has_vnni"))
        # The matrix instructions of newer Intel processors, which only oneDNN uses.
        self.has_tiles = (
            has_tiles is not None and has_tiles() and "onednn" in torch.backends.quantized.supported_engines
        )
        # Eight bits of the input saturate the sums of processors without these instructions; they get seven.
        self.reduce_range = has_vnni is None or not has_vnni()

    @staticmethod
    def suit() -> bool:
        """True where PyTorch can make such a matrix."""
        return find_private("quantise") is not None

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool = False) -> Product:
        matrix, reduce_range = self._pack(weight, bias), self.reduce_range
        multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
        return lambda x: multiply(x, matrix, reduce_range)

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None):
        """What `quantized.linear_dynamic` multiplies with: `weight` (F, D) as int8, each row scaled to [-127, 127]."""
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(weight.dtype).tiny)
        integers = (weight / scales[:, None]).round().to(torch.int8)
        with warnings.catch_warnings():
            # PyTorch means to replace tensors of this kind; its other kernels are slower here.
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
            matrix = self.quantise(integers, scales.double(), torch.zeros(len(scales), dtype=torch.long), 0)
        if not self.has_tiles:
            return torch.ops.quantized.linear_prepack(matrix, bias)
        with QUANTISATION_LOCK:  # the setting is one for all threads
            engine = torch.backends.quantized.engine
            torch.backends.quantized.engine = "onednn"
            try:
                return torch.ops.quantized.linear_prepack(matrix, bias)
            finally:
                torch.backends.quantized.engine = engine


def build_products(dtype: torch.dtype | str, device: torch.device) -> Products:
    """The fastest products in `dtype` on `device`.

    Args:
        dtype: of the copies, floating-point, or its name; "int8" is for CPUs.

    Raises:
        ValueError: for another dtype, for int8 on another device, or where this PyTorch has no int8.
    """
    given, dtype = dtype, getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype == torch.int8:
        if device.type != "cpu":
            raise ValueError(f"int8 is for CPUs, and the model is on {device}: use bfloat16 or float16 there.")
        if not Int8Products.suit():
            raise ValueError(f"PyTorch {torch.__version__} has no int8 products: use float32 or bfloat16.")
        return Int8Products()
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f'the dtype of an engine must be "int8" or floating-point, as "bfloat16" is; got {given!r}.')
    return PackedProducts(dtype) if device.type == "cpu" and PackedProducts.suit(dtype) else Products(dtype)


def find_private(name: str) -> Callable | None:
    """One of `PRIVATE_NAMES`, or `None` where this PyTorch does not have it."""
    try:
        return operator.attrgetter(PRIVATE_NAMES[name])(torch)
    except AttributeError:
        return None
