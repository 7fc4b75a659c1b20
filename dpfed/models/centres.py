"""Centres: where the embeddings of private and of public records lie, learnt beside a model for public contrast.

Private records and public ones are of two kinds. Without centres a model learns to tell the kinds apart: that alone makes
every public record an easy negative, and what distinguishes private records from each other is hardly learnt. So the contrast
sees what is left of an embedding when the centre of its kind is taken away (`dpfed.objectives.of_groups`).

Centres are parameters like others. They follow the embeddings through the same clipped and noisy sums, so they cost no
privacy of their own. They belong to training: no model that is published has them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.models.blueprints import blueprint
from dpfed.models.options import ModelConfig

ATTRIBUTE = "centres"  # of a model, and the name of what they give


class Centres(nn.Module):
    """Two centres for each modality, own ones first.

    Args:
        modalities: 1 or 2: images, and texts.
        width: D, dimensions of an embedding.
    """

    def __init__(self, modalities: int, width: int) -> None:
        super().__init__()
        # A table, because engines know tables: the gradient of a group in a plain parameter is not a layer's output.
        self.table = nn.Embedding(1, 2 * modalities * width)
        nn.init.zeros_(self.table.weight)

    def forward(self, records: int) -> Tensor:
        """``(records, 1, 2 * modalities * D)``: the same for every record of a group, as records are what engines see."""
        return self.table(torch.zeros(records, 1, dtype=torch.int64, device=self.table.weight.device))


def add_centres(model: nn.Module, options: ModelConfig) -> None:
    """Gives a model centres, at zero; draws nothing.

    Args:
        model: of `dpfed.models.building.build_model`.
        options: that it was built with.
    """
    width = blueprint(options).model_cfg["embed_dim"] if options.kind == "open_clip" else options.embedding
    with torch.random.fork_rng(devices=[]):
        setattr(model, ATTRIBUTE, Centres(1 + options.reads_text, width))
