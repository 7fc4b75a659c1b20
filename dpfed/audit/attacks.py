"""Membership attacks: from what is seen of a record to a score that is higher for members.

An adversary knows of some records whether they were members, and fits its attack to them; it is then tried on others. That is
more than an adversary with shadow models has, who must simulate the training with records of its own. Two families:

* white-box: losses (Yeom et al. 2018) and gradients by layer (Nasr et al. 2019), for whoever has the weights;
* EncoderMI (Liu et al. 2021), in the form of a threshold: a member's views are more alike, since training pulled them
  together; taken where the loss acts, in the space of the contrast. Captions count as views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.signals import Signals

Score = Callable[[Signals], np.ndarray]  # signals of n records -> (n,)

_L2 = 5e-3  # of the logistic regression


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: in results.
        title: for people.
        fit: (signals of known records, ``(n,)`` bool, whether each was a member) -> what scores others.
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
    """``(n, kinds)``: the mean cosine of each kind."""
    return torch.stack([values.mean(1) for values in signals.similarities.values()], 1)
