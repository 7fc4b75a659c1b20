"""Defines a loss inside one group that predicts one view of a record from another, without contrast to other records.

The loss follows SimSiam (Chen & He 2021, "Exploring Simple Siamese Representation Learning").
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from dpfed.errors import UserError
from dpfed.losses.pairs import PairLoss


class PredictionHead(nn.Module):
    """Head for the loss `Prediction`: it projects a view's features, and predicts another view's projection from the result.

    Args:
        embedding: D, the number of dimensions of the projection.
        hidden: Width of the hidden layers.
    """

    def __init__(self, embedding: int = 128, hidden: int = 512) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.LazyLinear(hidden), nn.ReLU(), nn.Linear(hidden, embedding))
        self.predict = nn.Sequential(nn.Linear(embedding, hidden), nn.ReLU(), nn.Linear(hidden, embedding))

    def forward(self, features: Tensor) -> Tensor:
        """Maps features ``(n, F)`` to ``(n, 2 D)``: D dimensions of the projection, then D of the prediction."""
        projection = self.project(features)
        return torch.cat([projection, self.predict(projection)], dim=1)


class Prediction(PairLoss):
    """A loss that compares, by the cosine, the prediction from each view with the projection of the other view.

    Gradients flow through the predictions only: the projections, which are their targets, are detached.

    BYOL and SimSiam need BatchNorm so that embeddings do not collapse to one point. But BatchNorm uses the statistics of a
    batch, which no private gradient may read. For the same purpose, this loss subtracts from projections and predictions their
    mean over the group. If all embeddings are equal, their cosine is then 0 and not 1. Under noise, this loss showed no
    measurable gain (docs/results.md): prefer a loss with negatives.

    The model must have a `PredictionHead`, or be a `dpfed.BYOL`. The loss does not refuse other embeddings, unless their
    number of dimensions is odd: it reads the first half as a projection, and the second half as a prediction.

    With `dpfed.BYOL` instead of `SimCLR`, the projection comes from a target network. The target's weights are a moving average
    of released weights, which costs no privacy.

    Args:
        centre: Whether the mean over the group's records is subtracted from projections and predictions.

    Example:
        ``dpfed.SimCLR(encoder, head=PredictionHead(128))`` with ``loss=Prediction()``.
    """

    def __init__(self, centre: bool = True) -> None:
        super().__init__(centre=centre)
        self._centre = centre

    def of(self, first: Tensor, second: Tensor) -> Tensor:
        """Computes minus the mean cosine of predictions and projections, over both directions. The group has S records.

        The cosines compare the predictions from each view with the projections of the other. The loss is -1 if every prediction
        is exact.

        Args:
            first: Projections, followed by predictions, of one view of each record, ``(S, 2 D)``.
            second: Projections, followed by predictions, of another view of each record, ``(S, 2 D)``.

        Returns:
            A scalar in [-1, 1], the mean over the S records.

        Raises:
            UserError: If the number of dimensions is odd.
        """
        if first.shape[1] % 2:
            raise UserError(
                "Prediction: expected an even number of dimensions, half of them a projection and half a prediction, got "
                f"{first.shape[1]}: give the model head=dpfed.losses.PredictionHead(). [loss-prediction]"
            )
        (one, of_other), (other, of_one) = (self._centred(view).chunk(2, dim=1) for view in (first, second))
        return -(cosine_similarity(of_other, other.detach(), dim=1) + cosine_similarity(of_one, one.detach(), dim=1)).mean() / 2

    def _centred(self, view: Tensor) -> Tensor:
        return view - view.mean(dim=0) if self._centre else view
