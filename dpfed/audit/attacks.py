"""Membership attacks: functions from a record's signals to a score that is higher for members.

The adversary knows for some records whether they were members, and fits its attack to them; the attack is then tested on other
records. This adversary is stronger than an adversary with shadow models, who must simulate the training on other records. Two
families:

* white-box: losses (Yeom et al. 2018), or losses, gradients by layer (Nasr et al. 2019) and similarities together, for an
  adversary with the weights;
* EncoderMI (Liu et al. 2021), as a threshold attack: a member's views are more similar, as training has pulled them together.
  The similarity is measured in the space in which the loss contrasts records. Captions count as views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.signals import Signals

Score = Callable[[Signals], np.ndarray]  # signals of n records -> scores (n,)

_L2 = 5e-3  # L2 penalty of the logistic regression


@dataclass(frozen=True)
class Attack:
    """One membership attack.

    Attributes:
        name: Name in results.
        title: Title for readers.
        fit: Function that takes signals of known records and their membership, ``(n,)`` bool, and returns a scoring function.
    """

    name: str
    title: str
    fit: Callable[[Signals, Tensor], Score]


def _loss(known: Signals, member: Tensor) -> Score:
    return lambda signals: -signals.losses.mean(1).numpy()


def _similarity(known: Signals, member: Tensor) -> Score:
    return lambda signals: _means(signals).mean(1).numpy()


def _white_box(known: Signals, member: Tensor) -> Score:
    def features(signals: Signals) -> Tensor:
        return torch.cat([signals.losses.sort(1).values, signals.gradients, _means(signals)], 1)

    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (_L2 * len(known)), max_iter=1000))
    regression.fit(features(known).numpy(), member.numpy())
    return lambda signals: regression.decision_function(features(signals).numpy())


ATTACKS = (
    Attack("loss", "loss, threshold", _loss),
    Attack("white-box", "losses and gradients", _white_box),
    Attack("encoder-threshold", "EncoderMI, threshold", _similarity),
)


def _means(signals: Signals) -> Tensor:
    """Returns the mean cosine of each kind of pairs of views, ``(n, kinds)``."""
    return torch.stack([values.mean(1) for values in signals.similarities.values()], 1)
