"""Lets a step without privacy use dpfed's own GroupNorm kernel, so that it is not slower for lack of this kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, autograd, nn
from torch.overrides import TorchFunctionMode

from dpfed.bounding.kernels import normalise, pull_back
from dpfed.models.norm import norm_relu


class FusedNorm(TorchFunctionMode):
    """Torch mode that computes a GroupNorm of feature maps, and the addition and ReLU after it, in one kernel launch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See `torch.overrides.TorchFunctionMode`."""
        if func is norm_relu and isinstance(norm := args[1], nn.GroupNorm):
            x, _, _, shortcut = args
            with self:
                added = None if shortcut is None else shortcut()
            return _Norm.apply(x, added, norm.weight, norm.bias, norm.num_groups, norm.eps, True)
        if func is F.group_norm and args[0].dim() == 4:
            return _plain(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _plain(input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Any:
    return _Norm.apply(input, None, weight, bias, num_groups, eps, False)


class _Norm(autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, scale: Tensor, shift: Tensor, groups: int, eps: float, relu: bool
    ) -> Tensor:
        """See `dpfed.bounding.kernels.normalise`."""
        out, means, inverses = normalise(x, scale, shift, groups, eps, relu, added)
        ctx.save_for_backward(x, out, scale, means, inverses)
        ctx.relu, ctx.added = relu, None if added is None else added.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """See `dpfed.bounding.kernels.pull_back`; gradients of scale and shift are summed over the images."""
        x, out, scale, means, inverses = ctx.saved_tensors
        of_x, of_added, by_image = pull_back(slopes[0], x, out, scale, means, inverses, ctx.relu, ctx.added is not None)
        of_scale, of_shift = by_image.sum(0)
        return of_x.to(x.dtype), None if of_added is None else of_added.to(ctx.added), of_scale, of_shift, None, None, None
