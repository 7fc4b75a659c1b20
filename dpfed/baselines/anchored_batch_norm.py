"""BatchNorm under group clipping: statistics of one group and of M public anchor images.

BatchNorm mixes images, so the records that it mixes must be clipped as one: here its statistics come from the records of ONE
group and from M public anchor images (`AnchoredEncoder`). A record then touches the clipped gradient of its own group and of no
other, and the sensitivity of the sum stays 2C (docs/methods.md). Nothing is averaged over steps; at inference the
statistics come from the anchors alone, so an image is embedded by itself.

The idea of public images in the batch is Davody et al.'s (2020). Their own version is not sound: they take statistics over the
whole private batch but clip per example, and one example more changes the statistics, and so the clipped gradient, of all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

_SEED = 2**32 - 1  # of generated anchors: other shapes than any data set of shapes holds


class AnchoredBatchNorm(nn.Module):
    """BatchNorm (Ioffe and Szegedy 2015) without running statistics; the last rows of its input are public anchors.

    In training mode, statistics come from all rows: a group's and the anchors'. In evaluation mode they come from the anchors
    alone. It works inside an `AnchoredEncoder`, which appends the anchors.

    Args:
        channels: channels of the input.
        eps: added to the variance.

    Attributes:
        anchors: how many of the last rows are anchors; set by the `AnchoredEncoder`, 0 outside of one.
    """

    mixes_one_group = True

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps, self.anchors = eps, 0

    def forward(self, x: Tensor) -> Tensor:
        """``(n + M, channels, H, W)`` -> the same shape, normalised per channel."""
        if self.training:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        anchors = x[len(x) - self.anchors :].to(self.weight.dtype)
        # Detached, as running statistics are: torch has no derivative in them.
        variance, mean = torch.var_mean(anchors.detach(), (0, 2, 3), correction=0)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


class AnchoredEncoder(nn.Module):
    """Runs an encoder on images together with M public anchors, for the sake of its `AnchoredBatchNorm` layers.

    In training mode all images of a call are normalised together, so a call must hold the views of one group and no others. The
    anchors are a buffer: they are saved with the weights, and a loaded model gives the same features.

    Args:
        encoder: normalised images ``(n, 3, H, W)`` -> features ``(n, F)``, with an attribute ``features_dim``.
        anchors: uint8 ``(M, 3, H, W)``, M >= 2; anyone may see them.
    """

    anchors: Tensor
    features_dim: int

    def __init__(self, encoder: nn.Module, anchors: Tensor) -> None:
        super().__init__()
        self.encoder, self.features_dim = encoder, getattr(encoder, "features_dim")  # noqa: B009
        self.register_buffer("anchors", anchors)
        for layer in encoder.modules():
            if isinstance(layer, AnchoredBatchNorm):
                layer.anchors = len(anchors)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images ``(n, 3, H, W)`` -> ``(n, features_dim)``."""
        anchors = self.anchors.to(images.dtype) / 127.5 - 1  # as the default `Preprocessing`, which all our encoders expect
        return self.encoder(torch.cat([images, anchors]))[: len(images)]


def anchor_images(path: str | None, count: int, size: int) -> Tensor:
    """Anchors from a public record store, or generated shapes.

    Args:
        path: of a record store that says it is public, of which training records are taken, the same ones every time;
            ``None``: shapes are generated.
        count: M.
        size: side, pixels.

    Returns:
        uint8 ``(M, 3, size, size)``.

    Raises:
        UserError: if the store cannot be opened, is not public, or holds too few training records.
    """
    if path is not None:
        return _from_store(RecordStore.open(Path(path).expanduser()), count, size)
    with tempfile.TemporaryDirectory() as folder:
        write_shapes(f"{folder}/anchors", train=count, validation=0, test=0, seed=_SEED)
        return _from_store(RecordStore.open(f"{folder}/anchors"), count, size)


def _from_store(store: RecordStore, count: int, size: int) -> Tensor:
    if not store.public:
        raise UserError(
            f"model.anchors: the records of {store.path} are not public, and anchors are a part of the released model: give a "
            "store that was imported as public, or leave model.anchors out for generated shapes. [norm-anchors-private]"
        )
    if store.count("train") < count:
        raise UserError(
            f"model.anchors: {store.path} has {store.count('train'):,} training records, fewer than model.anchor_count = "
            f"{count:,}: lower it, or give another store. [norm-few-anchors]"
        )
    # By key, because records often lie in the order of their classes.
    return store.images(store.smallest(store.within("train"), count), size)
