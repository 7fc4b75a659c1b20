"""What losses on the statistics of two views have in common. Shapes: S records in the group, padding included, D dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def first_two_views(embeddings: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The two ``(S, D)`` views of each record: image and text, or two of the image."""
    images = embeddings["image"]
    return images[:, 0], embeddings["text"][:, 0] if "text" in embeddings else images[:, 1]


def centred(view: Tensor, present: Tensor) -> Tensor:
    """Differences from the mean over the records that are present; zeros for padding, whatever it holds."""
    import torch

    here = torch.where(present[:, None], view, 0.0)
    mean = here.sum(dim=0) / present.sum().clamp(min=1)
    return torch.where(present[:, None], here - mean, 0.0)


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Sum of the squares off the diagonal of a square matrix."""
    import torch

    off = ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    return torch.where(off, matrix, 0.0).square().sum()


def sum_over_records(mean: Tensor, present: Tensor) -> Tensor:
    """A loss that is an average over records as a sum over them; exactly 0 for fewer than two."""
    import torch

    records = present.sum()
    return torch.where(records > 1, records * mean, 0.0)
