"""What a CUDA graph does, without CUDA: the operations of a step are recorded and done again on the same tensors."""

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedCapture(TorchDispatchMode):
    """Records a step; see `CudaCapture` of `engine_graphs_vaswani`."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.recorded: list[tuple] = []

    def begin_again(self) -> None:
        pass  # each graph has memory of its own

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """A function that does again what `step` does now, in the same memory, its result included."""
        self.recorded = recorded = []
        with self:
            result = step()

        @torch.inference_mode()
        def repeat() -> torch.Tensor:
            for func, args, kwargs, results in recorded:
                for old, new in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
                    if not (func.is_view or func._schema.is_mutable):
                        old.copy_(new)
            return result

        return repeat

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:  # only of the parts it is known whether they are views
                return func.decompose(*args, **kwargs)
        results = func(*args, **kwargs)
        self.recorded.append((func, args, kwargs, tree_leaves(results)))
        return results
