"""A model of one parameter with which an adversary can do whatever the sensitivity allows.

An embedding is a point of the unit circle that turns at a rate of its own as the parameter grows. Angle and rate are read from
the view, so every record, and each of its views, can be given any similarity with any gradient.
"""

import torch
from torch import nn

from dpfed.bounding.engines import GroupBatch
from dpfed.models.contrastive import per_view


class AngleModel(nn.Module):
    def __init__(self, temperature=1.0):
        super().__init__()
        self.turn = nn.Parameter(torch.zeros(1))
        self.register_buffer("temperature", torch.tensor(temperature))
        self.bias = None

    def embed_images(self, images):
        angle = images[:, 0, 0, 0] + images[:, 1, 0, 0] * self.turn
        return torch.stack([angle.cos(), angle.sin()], dim=1)

    def forward(self, views):
        return {"image": per_view(self.embed_images, views["image"])}


def batch_of(records):
    """A batch of one group: every record is its views' ``(angle, rate)``, ``(n, V, 2)``."""
    records = torch.as_tensor(records, dtype=torch.float32)
    images = torch.zeros(*records.shape[:2], 3, 1, 1)
    images[:, :, :2, 0, 0] = records
    return GroupBatch({"image": images}, [0, len(records)])


NEAR, FAST = 0.02, 1e6  # an angle near 0 or pi, where a large rate still makes a large gradient


def staying():
    """A record that is unlike itself and all of its kind, and does not move: views at 0 and pi."""
    return [[0.0, 0.0], [torch.pi, 0.0]]


def intruder(sign):
    """A record that looks to each `staying` one like its own view, and unlike itself; `sign` turns all its gradients."""
    return [[torch.pi + NEAR, -sign * FAST], [-NEAR, sign * FAST]]


def moving():
    """Like `staying`, but all similarities among them have gradients that point down."""
    return [[0.0, -FAST], [torch.pi - NEAR, FAST]]


def newcomer():
    """Like `intruder`, for `moving` records: all that it adds points up, where they lose what points down."""
    return [[torch.pi, 0.0], [NEAR, -2 * FAST]]
