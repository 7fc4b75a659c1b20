"""An encoder that predicts a slowly moving copy of itself (Grill et al. 2020, "Bootstrap Your Own Latent").

The copy, called the target, is an average of released weights. It is therefore post-processing and costs no privacy. It gets no
gradient; `dpfed.training.post_processing` moves it after each step.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.losses.prediction import PredictionHead
from dpfed.models.contrastive import per_view
from dpfed.models.own import SimCLR, refuse_widths


class BYOL(SimCLR):
    """An image encoder with a projection, a prediction, and a target; for the loss `dpfed.losses.Prediction`.

    The target is a buffer, not a parameter, and checkpoints keep it. The first forward pass creates the target as a copy of the
    encoder and the projection.

    Args:
        encoder: Any module from images ``(n, C, H, W)`` to features ``(n, F)``.
        embedding: D, dimensions of projection and prediction.
        hidden: Width of the hidden layers of projection and prediction.
        decay: Decay of the target's average, in [0, 1): after a step, each weight of the target is
            decay * target + (1 - decay) * the same weight of encoder or projection.

    Raises:
        UserError: If the encoder is not a module, a width is not a whole number of at least 1, or the decay is not a number in
            [0, 1).
    """

    def __init__(self, encoder: nn.Module, embedding: int = 128, *, hidden: int = 512, decay: float = 0.99) -> None:
        if isinstance(decay, bool) or not isinstance(decay, float | int) or not 0 <= decay < 1:
            raise UserError(f"BYOL: expected decay to be a number in [0, 1), got {decay!r}. [model-decay]")
        refuse_widths("BYOL", embedding=embedding, hidden=hidden)
        head = PredictionHead(embedding, hidden)
        super().__init__(encoder, head=head, normalize=False)
        self.decay = float(decay)
        self.target: nn.Module = nn.Identity()

    def forward(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
        """Maps ``{"image": (S, V, C, H, W)}`` to ``{"image": (S, V, 2 D)}``: the target's projection, then the prediction."""
        return {"image": per_view(self._embed, views["image"])}

    def _embed(self, images: Tensor) -> Tensor:
        _, prediction = self.head(self.encoder(images)).chunk(2, dim=1)
        if isinstance(self.target, nn.Identity):  # first forward pass: now the widths of all layers are known
            self.target = _frozen(nn.Sequential(self.encoder, self.head.project))  # type: ignore[arg-type]
        with torch.no_grad():
            aim = self.target(images)
        return torch.cat([aim, prediction], dim=1)

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the target's weights towards those of encoder and projection, by one step of the moving average."""
        moving = nn.Sequential(self.encoder, self.head.project).state_dict()  # type: ignore[arg-type]
        for name, value in self.target.state_dict().items():
            if value.is_floating_point():
                value.lerp_(moving[name], 1 - self.decay)


def _frozen(module: nn.Module) -> nn.Module:
    """Returns a copy of a module in which every parameter is a buffer."""
    frozen = copy.deepcopy(module)
    for part in frozen.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())
    return frozen
