"""BatchNorm under group clipping: statistics of one group and of M public anchor images.

BatchNorm mixes images, so the records that it mixes must be clipped as one. `AnchoredBatchNorm` therefore takes its statistics
from the records of ONE group and from M public anchor images, which `AnchoredEncoder` appends. A record then affects the
clipped gradient of its own group only, and the sensitivity of the sum stays 2C (docs/methods.md). No statistics are averaged
over steps. At inference they come from the anchors alone, so the embedding of an image depends on no other private image.

The idea of public images in the batch is Davody et al.'s (2020). Their version is not sound: they take statistics over the
whole private batch but clip per example. So one additional example changes the statistics, and with them the clipped gradient
of every example.
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

_SEED = 2**32 - 1  # seed of generated anchors, whose shapes occur in no data set of shapes


class AnchoredBatchNorm(nn.Module):
    """BatchNorm (Ioffe and Szegedy 2015) without running statistics; the last rows of its input are public anchors.

    In training mode, statistics come from all rows: a group's and the anchors'. In evaluation mode they come from the anchors
    alone. The layer works inside an `AnchoredEncoder`, which appends the anchors.

    Args:
        channels: Number of channels of the input.
        eps: Term added to the variance.

    Attributes:
        anchors: M, the number of anchors, which are the last rows of the input; 0 until an `AnchoredEncoder` sets it.
    """

    mixes_one_group = True

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps, self.anchors = eps, 0

    def forward(self, x: Tensor) -> Tensor:
        """Normalises ``(n + M, channels, H, W)`` per channel."""
        if self.training:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        anchors = x[len(x) - self.anchors :].to(self.weight.dtype)
        # The anchors are detached, as running statistics are: torch has no derivative with respect to statistics.
        variance, mean = torch.var_mean(anchors.detach(), (0, 2, 3), correction=0)
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


class AnchoredEncoder(nn.Module):
    """Runs an encoder on images together with M public anchors, which its `AnchoredBatchNorm` layers need.

    In training mode all images of a call are normalised together, so a call must hold the views of one group and no others. The
    anchors are a buffer: they are saved with the weights, and a loaded model gives the same features.

    Args:
        encoder: Encoder of normalised images ``(n, 3, H, W)`` to features ``(n, F)``.
        anchors: Public images ``(M, 3, H, W)`` uint8, M >= 2.

    Attributes:
        features_dim: F, if the encoder has an attribute of this name, else ``None``.
    """

    anchors: Tensor
    features_dim: int | None

    def __init__(self, encoder: nn.Module, anchors: Tensor) -> None:
        super().__init__()
        self.encoder, self.features_dim = encoder, getattr(encoder, "features_dim", None)
        self.register_buffer("anchors", anchors)
        for layer in encoder.modules():
            if isinstance(layer, AnchoredBatchNorm):
                layer.anchors = len(anchors)

    def forward(self, images: Tensor) -> Tensor:
        """Encodes normalised images ``(n, 3, H, W)`` as features ``(n, F)``."""
        anchors = self.anchors.to(images.dtype) / 127.5 - 1  # as the default `Preprocessing`, which dpfed's encoders expect
        return self.encoder(torch.cat([images, anchors]))[: len(images)]


def anchor_images(path: str | None, count: int, size: int) -> Tensor:
    """Returns anchors: images of a public record store, or generated shapes.

    Args:
        path: Path of a record store that is marked as public, from which the same training records are taken every time.
            ``None``: shapes are generated.
        count: M, the number of anchors.
        size: Side of an image, pixels.

    Returns:
        Images ``(M, 3, size, size)`` uint8.

    Raises:
        UserError: If the store cannot be opened, is not public, or holds too few training records.
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
            "store that was imported as public, or leave model.anchors out: dpfed then generates anchors. "
            "[norm-anchors-private]"
        )
    if store.count("train") < count:
        raise UserError(
            f"model.anchors: {store.path} has {store.count('train'):,} training records, fewer than model.anchor_count = "
            f"{count:,}: lower this number, or give another store. [norm-few-anchors]"
        )
    # Records are taken by key, because they often lie in the order of their classes.
    return store.images(store.smallest(store.within("train"), count), size)
