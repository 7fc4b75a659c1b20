"""Image encoders. By default every normalisation is a GroupNorm, which stays within one image (`dpfed.models.norm`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from dpfed.models.norm import Norm, group_norm, norm_relu

_EIGHT_GROUPS: Norm = functools.partial(group_norm, groups=8)
Features = Literal["last", "pyramid"]


def read_out(maps: Sequence[torch.Tensor], features: Features) -> torch.Tensor:
    """Pools the feature maps of an encoder's stages into one vector per image.

    The pyramid keeps rough positions (spatial pyramids, Lazebnik et al. 2006) and the features of early stages (hypercolumns,
    Hariharan et al. 2015). It has no weights of its own; only the head behind it grows.

    Args:
        maps: Feature maps of each stage, ``(n, channels, H, W)``.
        features: Kind of pooling: ``last``: the mean over the last stage; ``pyramid``: the means over the four quadrants of
            every stage.

    Returns:
        The features, ``(n, channels of the last stage)`` or ``(n, 4 x channels of all stages)``.
    """
    if features == "last":
        return maps[-1].mean((2, 3))
    return torch.cat([F.adaptive_avg_pool2d(stage, 2).flatten(1) for stage in maps], dim=1)


def _features_dim(channels: Sequence[int], features: Features) -> int:
    return channels[-1] if features == "last" else 4 * sum(channels)


class SmallCNN(nn.Module):
    """Four normalised 3x3 convolutions: 0.24 M parameters at width 32, few operations, quick on a CPU.

    Args:
        width: Channels of the first stage; the last has four times as many.
        norm: Function from the number of channels to the normalisation layer after a convolution.
        features: Kind of pooling; see `read_out`.
    """

    def __init__(self, width: int = 32, norm: Norm = _EIGHT_GROUPS, features: Features = "last") -> None:
        super().__init__()
        self._features = features
        self.features_dim = _features_dim([width, 2 * width, 4 * width, 4 * width], features)
        stages: list[nn.Module] = []
        channels = 3
        for out, stride in ((width, 2), (2 * width, 2), (4 * width, 2), (4 * width, 1)):
            convolution = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            stages += [convolution, norm(out), nn.ReLU()]
            channels = out
        self.stages = nn.Sequential(*stages)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps normalised images ``(n, 3, H, W)`` to features ``(n, features_dim)``."""
        maps = []
        layers = list(self.stages)
        for convolution, norm, relu in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
            images = norm_relu(convolution(images), norm, relu)
            maps.append(images)
        return read_out(maps, self._features)


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, whose parameters have torchvision's names.

    An import of torchvision's own block would load torch's compiler.
    """

    expansion = 1

    def __init__(self, channels: int, planes: int, stride: int, shortcut: nn.Module | None, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU()  # not in place: torch.func transforms and gradient hooks do not allow that
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = norm(planes)
        self.downsample = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = norm_relu(self.conv1(x), self.bn1, self.relu)
        return norm_relu(self.conv2(out), self.bn2, self.relu, lambda: self.downsample(x) if self.downsample else x)


class _Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1, and a shortcut, whose parameters have torchvision's names."""

    expansion = 4

    def __init__(self, channels: int, planes: int, stride: int, shortcut: nn.Module | None, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = norm(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = norm(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = norm(4 * planes)
        self.relu = nn.ReLU()
        self.downsample = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = norm_relu(self.conv1(x), self.bn1, self.relu)
        out = norm_relu(self.conv2(out), self.bn2, self.relu)
        return norm_relu(self.conv3(out), self.bn3, self.relu, lambda: self.downsample(x) if self.downsample else x)


_BLOCKS: dict[int, tuple[type[_BasicBlock] | type[_Bottleneck], tuple[int, ...]]] = {
    18: (_BasicBlock, (2, 2, 2, 2)),
    34: (_BasicBlock, (3, 4, 6, 3)),
    50: (_Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """torchvision's residual network without its classifier, of any width, and free of in-place activations.

    Parameter names are torchvision's, so that published GroupNorm weights fit. Use `resnet` to make a network.
    """

    def __init__(self, depth: int, stem: str, width: int, norm: Norm, features: Features) -> None:
        super().__init__()
        self._features = features
        block, counts = _BLOCKS[depth]
        if stem == "cifar":
            self.conv1, pooling = nn.Conv2d(3, width, 3, 1, 1, bias=False), None
        else:
            self.conv1, pooling = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
        self.maxpool = pooling or nn.Identity()
        self.bn1 = norm(width)
        self.relu = nn.ReLU()
        channels, ends = width, []
        for stage, count in enumerate(counts):
            planes = width * 2**stage
            layers = []
            for index in range(count):
                stride = 2 if stage and not index else 1
                layers.append(_block(block, channels, planes, stride, norm))
                channels = planes * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
            ends.append(channels)
        self.features_dim = _features_dim(ends, features)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps normalised images ``(n, 3, H, W)`` to features ``(n, features_dim)``."""
        x = self.maxpool(norm_relu(self.conv1(images), self.bn1, self.relu))
        maps = []
        for layer in map(self.get_submodule, ("layer1", "layer2", "layer3", "layer4")):
            x = layer(x)
            maps.append(x)
        return read_out(maps, self._features)


def _block(block: type[_BasicBlock] | type[_Bottleneck], channels: int, planes: int, stride: int, norm: Norm) -> nn.Module:
    out, shortcut = planes * block.expansion, None
    if stride != 1 or channels != out:
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))
    return block(channels, planes, stride, shortcut, norm)


def resnet(
    depth: Literal[18, 34, 50],
    stem: Literal["cifar", "imagenet"] = "cifar",
    width: int = 64,
    norm: Norm = group_norm,
    features: Features = "last",
) -> ResNet:
    """Makes a ResNet (He et al. 2016) with GroupNorm, or another layer, in place of BatchNorm.

    Args:
        depth: Number of layers: 18, 34 or 50.
        stem: First layer: ``cifar``, 3x3 with stride 1 for images of about 32 px, or ``imagenet``, 7x7 with stride 2 and
            max-pooling.
        width: Channels of the first stage, 64 in the paper.
        norm: Function from the number of channels to the normalisation layer after a convolution.
        features: Kind of pooling; see `read_out`.

    Raises:
        ValueError: For another depth or stem.
    """
    if depth not in _BLOCKS or stem not in ("cifar", "imagenet"):
        raise ValueError(f"expected depth 18, 34 or 50 and stem 'cifar' or 'imagenet', got {depth!r} and {stem!r}")
    return ResNet(depth, stem, width, norm, features)


resnet18, resnet34, resnet50 = (functools.partial(resnet, depth) for depth in (18, 34, 50))
