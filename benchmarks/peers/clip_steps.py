"""A step of ViT-B-32 at 224 px on pairs: dpfed's private one, and open_clip's own, which has no privacy.

Random weights: what a step costs does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpfed.bounding.engines import GroupBatch, LoopEngine
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model, tokenizer_for
from dpfed.models.parameters import TrainableVector


@dataclass(frozen=True)
class ClipProblem:
    """One cell.

    Attributes:
        batch: B; open_clip contrasts all pairs of it with each other.
        architecture: of open_clip.
        clip_norm: C.
    """

    batch: int
    architecture: str = "ViT-B-32"
    clip_norm: float = 1.0

    @property
    def config(self) -> ModelConfig:
        """Of dpfed's model."""
        return ModelConfig(kind="open_clip", architecture=self.architecture)

    def pairs(self, size: int) -> tuple[Tensor, Tensor]:
        """Images ``(B, 3, H, W)`` and tokens ``(B, L)``."""
        tokenizer = tokenizer_for(self.config)
        assert tokenizer is not None
        tokens = tokenizer([f"a photo of thing number {record}, seen from above" for record in range(self.batch)])
        return torch.randn(self.batch, 3, size, size, generator=torch.Generator().manual_seed(1)), tokens


def in_groups(problem: ClipProblem, group: int) -> Callable[[], Tensor]:
    """dpfed's clipped sum over groups by the loop, adapters of rank 16 on q and v of both towers."""
    model, images, tokens = _adapted(problem)
    batch = GroupBatch({"image": images[:, None], "text": tokens[:, None]}, list(range(0, problem.batch + 1, group)))
    engine = LoopEngine(model)

    def step() -> Tensor:
        into = engine.zeros()
        engine.add_clipped(batch, problem.clip_norm, into)
        return into

    return step


def adapters_only(problem: ClipProblem, at_once: int) -> Callable[[], Tensor]:
    """open_clip's forward pass and `ClipLoss` of the model with dpfed's adapters: backward to the adapters alone."""
    model, images, tokens = _adapted(problem)
    return _own_step(model.clip, TrainableVector(model).parameters, images, tokens)


def full(problem: ClipProblem, at_once: int) -> Callable[[], Tensor]:
    """open_clip's own step: its model, all weights trained, its `ClipLoss`."""
    import open_clip

    torch.manual_seed(0)
    model = open_clip.create_model(problem.architecture).train()
    size = model.visual.image_size
    images, tokens = problem.pairs(size[0] if isinstance(size, tuple) else size)
    return _own_step(model, list(model.parameters()), images, tokens)


def _own_step(model: Any, parameters: list[Tensor], images: Tensor, tokens: Tensor) -> Callable[[], Tensor]:
    from open_clip import ClipLoss

    loss = ClipLoss()

    def step() -> Tensor:
        one = loss(
            model.encode_image(images, normalize=True), model.encode_text(tokens, normalize=True), model.logit_scale.exp()
        )
        gradients = torch.autograd.grad(one, parameters, allow_unused=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients if gradient is not None])

    return step


def _adapted(problem: ClipProblem) -> tuple[Any, Tensor, Tensor]:
    torch.manual_seed(0)
    model = build_model(problem.config, ObjectiveConfig(), load_weights=False).train()
    size = model.model_cfg["vision_cfg"]["image_size"]
    return model, *problem.pairs(size)
