"""A model that learns by predicting what a slower copy of itself says (Grill et al. 2020, BYOL).

The slower copy, the target network, is a function of the weights that were released step by step, and so costs no privacy. Its
weights are buffers: no gradient, no noise and no optimizer touches them, and every checkpoint holds them. The coordinator moves
them once per step (`BYOLModel.move`); workers get them together with the parameters (`BroadcastVector`).
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfed.models.contrastive import SimCLRModel, per_view


class BYOLModel(SimCLRModel):
    """An encoder with a projection head, a predictor behind it, and a target network that follows the first two.

    Args:
        encoder: images ``(n, 3, H, W)`` -> features ``(n, F)``.
        head: features -> ``(n, D)``.
        predictor: ``(n, D)`` -> ``(n, D)``; thrown away after training, like the head.
        momentum: how much of the target's weights stays in a step; the rest comes from encoder and head.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, predictor: nn.Module, momentum: float) -> None:
        super().__init__(encoder, head)
        self.predictor, self.momentum = predictor, momentum
        self.copy_to_target()

    def copy_to_target(self) -> None:
        """Makes the target network a copy of encoder and head as they are now, adapters included."""
        parts = OrderedDict(encoder=copy.deepcopy(self.encoder), head=copy.deepcopy(self.head))
        self.target = _with_buffers(nn.Sequential(parts))

    def forward(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
        """``{"image": (S, V, 3, H, W)}`` -> ``{"image": (S, V, D), "target": (S, V, D)}`` of unit length: predictions, and what
        the target network says of the same views."""
        predicted = per_view(lambda images: self.predictor(self.project_images(images)), views["image"])
        return {"image": F.normalize(predicted, dim=2), "target": F.normalize(per_view(self.target, views["image"]), dim=2)}

    def moving_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names and values of what `move` changes."""
        for name, _ in self.named_parameters():
            if name.startswith(("encoder.", "head.")):
                yield f"target.{name}", self.target.get_buffer(name)

    @torch.no_grad()
    def move(self) -> None:
        """One step of the target network towards encoder and head."""
        for name, weights in self.moving_weights():
            weights.lerp_(self.get_parameter(name.removeprefix("target.")), 1 - self.momentum)


def _with_buffers(network: nn.Module) -> nn.Module:
    """Turns a network's parameters into buffers."""
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    return network
