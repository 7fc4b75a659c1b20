"""Centres of the embeddings of private and of public records, trained with a model whose groups have public records.

Without centres a model learns to tell private records from public ones. That alone makes every public record an easy negative,
and the model hardly learns what distinguishes private records from each other. The loss therefore subtracts from each embedding
the centre of its kind, private or public (`dpfed.objectives.of_groups`).

Centres are parameters like others: the same clipped and noisy sums train them, so they cost no additional privacy. They belong
to training: a published model has no centres.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.models.blueprints import blueprint
from dpfed.models.options import ModelConfig

ATTRIBUTE = "centres"  # name of the model's attribute, and of the centres among its embeddings


class Centres(nn.Module):
    """For each modality, a centre of the private records and a centre of the public records.

    Args:
        modalities: Number of modalities: 1 (images) or 2 (images and texts).
        width: D, dimensions of an embedding.
    """

    def __init__(self, modalities: int, width: int) -> None:
        super().__init__()
        # An embedding table, because engines have a rule for tables, and none for a plain parameter, which is not a layer.
        self.table = nn.Embedding(1, 2 * modalities * width)
        nn.init.zeros_(self.table.weight)

    def forward(self, records: int) -> Tensor:
        """Returns the centres, ``(records, 1, 2 * modalities * D)``, those of the private records first.

        All rows are equal: each record gets a copy of the centres, because engines work record by record.
        """
        return self.table(torch.zeros(records, 1, dtype=torch.int64, device=self.table.weight.device))


def add_centres(model: nn.Module, options: ModelConfig) -> None:
    """Adds centres, all zero, to a model; torch's random state does not change.

    Args:
        model: Model made by `dpfed.models.building.build_model`.
        options: Configuration that the model was built with.
    """
    width = blueprint(options).model_cfg["embed_dim"] if options.kind == "open_clip" else options.embedding
    with torch.random.fork_rng(devices=[]):
        setattr(model, ATTRIBUTE, Centres(1 + options.reads_text, width))
