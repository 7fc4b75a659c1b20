"""Defines decoupled contrastive learning inside one group (Yeh et al. 2022, "Decoupled Contrastive Learning")."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.losses.pairs import PairLoss, refuse_options


class DCL(PairLoss):
    """The InfoNCE loss without the positive pair (two views of one record) in the denominator.

    In a small group, the positive pair is a large part of InfoNCE's denominator, and InfoNCE's gradient fades once the pair is
    closer than the negatives are. The gradient of DCL does not fade. The value of DCL may be negative.

    Args:
        temperature: Divisor of the cosine similarities, above 0. The loss does not read the model's temperature.

    Raises:
        UserError: If the temperature is not positive and finite.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        refuse_options("DCL", zero=False, temperature=temperature)
        super().__init__(temperature=temperature)
        self._scale = 1 / temperature

    def of(self, first: Tensor, second: Tensor) -> Tensor:
        """Computes the loss of two views of each record, as the sum over both directions, first to second and second to first.

        The two views of a record attract each other, and both views of all other records repel them. S is the number of records
        and D the number of dimensions.

        Args:
            first: Embedding of one view of each record, ``(S, D)``, of any norm: the loss normalises embeddings.
            second: Embedding of another view of each record, ``(S, D)``.

        Returns:
            A scalar, the mean over the S records; exactly 0 for a group of one record, which has no other records to repel it.
        """
        if len(first) < 2:
            return 0.0 * (first.sum() + second.sum())
        one, other = normalize(first, dim=1), normalize(second, dim=1)
        same = torch.eye(len(one), dtype=torch.bool, device=one.device)
        across = one @ other.T * self._scale

        def repelled(within: Tensor, between: Tensor) -> Tensor:
            """Computes the log-sum-exp of each record's similarities to both views of all other records, ``(S,)``."""
            logits = torch.cat([within.masked_fill(same, -torch.inf), between.masked_fill(same, -torch.inf)], dim=1)
            return logits.logsumexp(dim=1)

        sides = repelled(one @ one.T * self._scale, across) + repelled(other @ other.T * self._scale, across.T)
        return (sides - 2 * across.diagonal()).mean()
