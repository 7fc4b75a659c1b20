"""Small data sets, encoders and transforms of a user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

SIDE = 12


def picture(number: int) -> Image.Image:
    """A picture that is a function of a number."""
    pixels = np.random.default_rng(number).integers(0, 255, (SIDE, SIDE, 3)).astype(np.uint8)
    pixels[: SIDE // 2] = 200 * (number % 2)
    return Image.fromarray(pixels)


class Pictures(torch.utils.data.Dataset):
    """Pictures in two classes."""

    classes = ("dark", "bright")

    def __init__(self, count: int, first: int = 0) -> None:
        self.numbers = list(range(first, first + count))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        number = self.numbers[place]
        return picture(number), number % 2


def augment(size: int = SIDE) -> v2.Compose:
    """Random views."""
    crops = [v2.RandomResizedCrop(size, (0.3, 1.0)), v2.RandomHorizontalFlip()]
    return v2.Compose([*crops, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def encoder(channels: int = 3, width: int = 8) -> nn.Sequential:
    """Images of any size to features."""
    first = nn.Conv2d(channels, width, 3, 2)
    return nn.Sequential(first, nn.GroupNorm(2, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def contrast(z: Tensor) -> Tensor:
    """InfoNCE in one direction."""
    z = nn.functional.normalize(z, dim=-1)
    return nn.functional.cross_entropy(z[:, 0] @ z[:, 1].T / 0.2, torch.arange(len(z), device=z.device))


def photos(count: int = 80) -> Any:
    """What a configuration calls for its records."""
    from dpfed import Records

    return Records(Pictures(count), validation=Pictures(20, 900), workers=0)


def small(width: int = 8) -> nn.Module:
    """What a configuration calls for its encoder."""
    return encoder(width=width)


def trained() -> nn.Module:
    """An encoder that a run on private records has trained, as `dpfed.load` marks it."""
    from dpfed.models.trained import mark_trained

    net = encoder()
    mark_trained(net, "runs/first")
    return net


class Scaled:
    """A loss with an option."""

    def __init__(self, temperature: float = 0.2) -> None:
        self.temperature = temperature

    def __call__(self, z: Tensor) -> Tensor:
        """See `contrast`."""
        return contrast(z * self.temperature) + z.square().mean()
