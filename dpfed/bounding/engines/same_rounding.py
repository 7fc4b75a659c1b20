"""Whether a device rounds a group alike, whoever shares its pass and wherever it stands there.

A kernel may choose the order of its additions by the shape of its input, and nothing keeps it from choosing by anything else.
What that moves in float32 has its room (`dpfed.bounding.bounded_sum`). In bf16 it is 2^16 times as much, and no room covers it.
So a pass in bf16 has one shape, and the device must show, on noise, that a group comes out the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpfed.bounding.engines.engine import Views, draws
from dpfed.errors import UserError

_DIFFERENCE = 1e-5  # relative, of squared norms: what float32 does behind the passes; a digit of bf16 more or less is 4e-3


def require_same_rounding(
    squares: Callable[[Views, list[int]], Tensor], views: Views, sizes: list[int], model: nn.Module
) -> None:
    """Compares groups of noise with themselves, in another order and beside others.

    Args:
        squares: from the views of G groups and their sizes to ``(terms, G)``, their squared norms, layer by layer.
        views: of any records; only their shapes and types are read.
        sizes: of the groups, such that they do not stand at the same places from behind.
        model: what is passed.

    Raises:
        UserError: if a group comes out differently, or if the model draws random numbers, which hides it.
    """
    if any(draws(module) for module in model.modules()):
        raise UserError(
            "training.precision = 'bf16' with bounding.engine = 'layerwise' cannot be checked for a model that drops units at "
            "random: set training.precision = 'fp32', or bounding.engine = 'loop'."
        )
    generator = torch.Generator().manual_seed(0)
    noise, others = (_noise(views, sum(sizes), generator) for _ in range(2))
    # Every other group stays. The rest become others, and all are turned round.
    turned = {
        name: torch.cat([(others if number % 2 else noise)[name].split(sizes)[number] for number in range(len(sizes))][::-1])
        for name in views
    }
    alone, beside = squares(noise, sizes)[:, ::2], squares(turned, sizes[::-1]).flip(1)[:, ::2]
    if not torch.allclose(alone, beside, rtol=_DIFFERENCE, atol=0.0):
        device = next(iter(views.values())).device.type
        raise UserError(
            f"bounding.engine = 'layerwise' passes several groups at once, and in bf16 this device ({device}) rounds a group "
            "by those beside it: set training.precision = 'fp32', or bounding.engine = 'loop'."
        )


def _noise(views: Views, records: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Images of noise, and texts of two tokens."""
    found = {}
    for name, view in views.items():
        shape = (records, *view.shape[1:])
        if view.is_floating_point():
            drawn = torch.randn(shape, generator=generator)
        else:
            drawn = torch.randint(1, 3, shape, generator=generator)
        found[name] = drawn.to(view)
    return found
