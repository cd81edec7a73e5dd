"""Matrix products of an engine, packed on CPUs.

PyTorch's private names are looked up when an engine is built, never at import. If PyTorch lacks one of them, its public
functions multiply.
"""

import operator
import platform
from collections.abc import Callable, Sequence

import torch
from torch import nn

ONEDNN_MACHINES = ("x86_64", "AMD64")  # where its products were measured
PRIVATE_NAMES = {  # of torch
    "reorder": "ops.mkldnn._reorder_linear_weight",
    "multiply": "ops.mkldnn._linear_pointwise",
    "has_bfloat16": "ops.mkldnn._is_mkldnn_bf16_supported",
    "has_global_hooks": "nn.modules.module._has_any_global_hook",
}

Product = Callable[[torch.Tensor], torch.Tensor]


class Products:
    """Matrix products of an engine, by PyTorch's own kernels; subclasses multiply in other ways.

    Args:
        dtype: the dtype of the matrices.
        copies: False to read matrices from the model if they are in `dtype`, for a search that ends before they change.
    """

    def __init__(self, dtype: torch.dtype, *, copies: bool = True):
        self.dtype, self.copies = dtype, copies

    def one(self, layer: nn.Linear, *, relu: bool = False) -> Product:
        """Return the product (..., D) -> (..., F) with `layer`, and if `relu` with max(0, x) after it."""
        return self.build(self._prepare(layer.weight), self._prepare(layer.bias), relu=relu)

    def several(self, *layers: nn.Linear) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
        """Return the products of one input with `layers`; all have a bias or none has."""
        biases = [layer.bias for layer in layers]
        bias = None if biases[0] is None else torch.cat(biases)
        product = self.build(self._prepare(torch.cat([layer.weight for layer in layers])), self._prepare(bias))
        sizes = [len(layer.weight) for layer in layers]
        return lambda x: product(x).split(sizes, dim=-1)

    def adding(self, layer: nn.Linear) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return the product of x (rows, D) with `layer`, added to `residual` (rows, F)."""
        if layer.bias is None and type(self) is Products:
            weight = self._prepare(layer.weight).t()
            return lambda x, residual: torch.addmm(residual, x, weight)
        product = self.one(layer)
        return lambda x, residual: residual + product(x)

    def build(self, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool = False) -> Product:
        """Return the product with `weight` (F, D) and `bias` (F,)."""
        if relu:
            return lambda x: nn.functional.linear(x, weight, bias).relu_()
        return lambda x: nn.functional.linear(x, weight, bias)

    def keep(self, parameter: torch.Tensor | None) -> torch.Tensor | None:
        """Return a copy of `parameter`, or `parameter` itself."""
        return None if parameter is None else parameter.detach().to(self.dtype, copy=self.copies)

    def _prepare(self, parameter: torch.Tensor | None) -> torch.Tensor | None:
        """Return a matrix or a bias in the form for `build`."""
        return self.keep(parameter)


class PackedProducts(Products):
    """Matrix products in float32 or bfloat16, with matrices in the order in memory that oneDNN's kernels read.

    PyTorch multiplies float32 with MKL on x86-64, which lays the matrix out again for every product. A search
    multiplies few rows by the same matrices again and again. Microseconds for a matrix of 512 x 10,000 on an AMD
    processor with two threads, as it is and packed: in float32 1,289 and 165 by 4 rows, 14,689 and 6,018 by 256 rows;
    in bfloat16 218 and 90, 4,222 and 3,284.
    """

    def __init__(self, dtype: torch.dtype, *, copies: bool = True):
        super().__init__(dtype, copies=copies)
        self.reorder, self.multiply = find_private("reorder"), find_private("multiply").default

    @staticmethod
    def suit(dtype: torch.dtype) -> bool:
        """Return True if oneDNN exists and multiplies in `dtype`."""
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


def build_products(dtype: torch.dtype | str, device: torch.device, *, copies: bool = True) -> Products:
    """Return the fastest products on `device` in `dtype`, a floating-point dtype or its name.

    Packing pays even for one sentence. With beam 4 and two threads, base takes half to two thirds of the time for 12 to
    25 words, and the same time for 5.

    Raises:
        ValueError: if `dtype` is not floating-point.
    """
    given, dtype = dtype, getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f'the dtype of an engine must be floating-point, as "bfloat16" is; got {given!r}. For int8: '
            f"vaswani export --format ctranslate2 --quantization int8."
        )
    kind = PackedProducts if device.type == "cpu" and PackedProducts.suit(dtype) else Products
    return kind(dtype, copies=copies)


def find_private(name: str) -> Callable | None:
    """Return one of `PRIVATE_NAMES`, or `None` if this PyTorch does not have it."""
    try:
        return operator.attrgetter(PRIVATE_NAMES[name])(torch)
    except AttributeError:
        return None
