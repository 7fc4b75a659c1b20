"""Defines VICReg inside one group (Bardes et al. 2022, "VICReg: Variance-Invariance-Covariance Regularization")."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

from dpfed.losses.pairs import PairLoss, refuse_options

_EPSILON = 1e-4  # added to variances, as in the paper


class VICReg(PairLoss):
    """The VICReg loss: views of a record should agree, each dimension should vary, and no two dimensions should be correlated.

    Variances and covariances are computed over the S records of one group, not over a batch as in the paper. A covariance
    matrix has rank S - 1 at most: with fewer records than dimensions, the covariance term is mostly noise. Groups of 16 or more
    records work better.

    The loss depends on the norm of embeddings. So `prepare` makes a `SimCLR` or `TwoTower` stop normalising them. Any other
    model must return embeddings that are not normalised.

    Args:
        invariance: Weight of the mean squared distance between two views of a record.
        variance: Weight of the hinge that demands a standard deviation of 1 in each dimension.
        covariance: Weight of the squared covariances between dimensions.

    Raises:
        UserError: If a weight is negative or not finite.
    """

    def __init__(self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> None:
        refuse_options("VICReg", zero=True, invariance=invariance, variance=variance, covariance=covariance)
        super().__init__(invariance=invariance, variance=variance, covariance=covariance)
        self._invariance, self._variance, self._covariance = invariance, variance, covariance

    def prepare(self, model: nn.Module, group_size: int) -> None:
        """Makes the model stop normalising its embeddings, see `Loss.prepare`."""
        model.unit_length = False  # type: ignore[assignment]

    def of(self, first: Tensor, second: Tensor) -> Tensor:
        """Computes the weighted sum of the invariance, variance and covariance terms.

        As in the authors' code, the hinge is the mean over both views, and the covariance terms of both views are added up.

        Args:
            first: Embedding of one view of each record, ``(S, D)``, not normalised.
            second: Embedding of another view of each record, ``(S, D)``, not normalised.

        Returns:
            A scalar; for a group of one record, which has no variance, only the invariance term.
        """
        loss = self._invariance * mse_loss(first, second)
        if len(first) < 2:
            return loss
        for view in (first, second):
            residuals = view - view.mean(dim=0)
            covariance = residuals.T @ residuals / (len(view) - 1)
            hinge = relu(1 - (covariance.diagonal() + _EPSILON).sqrt()).mean()
            crossed = covariance.square().sum() - covariance.diagonal().square().sum()
            loss = loss + self._variance * hinge / 2 + self._covariance * crossed / view.shape[1]
        return loss
