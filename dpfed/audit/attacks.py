"""Membership attacks: from what is seen of a record to a score that is higher for members.

An adversary knows of some records whether they were members, and fits its attack to them; it is then tried on others. That is
more than an adversary with shadow models has, who must simulate the training with records of its own. Two families:

* white-box: losses (Yeom et al. 2018) and gradients by layer (Nasr et al. 2019), for whoever has the weights;
* EncoderMI (Liu et al. 2021): a member's views are more alike, since training pulled them together. Their three forms, a
  threshold, a network on the ranked vector of cosines, and one on the set of cosines (Zaheer et al. 2017), taken where the
  loss acts, in the space of the contrast; captions count as views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from dpfed.audit.signals import Signals

Score = Callable[[Signals], np.ndarray]  # signals of n records -> (n,)

_L2 = 5e-3  # of the logistic regression
_HIDDEN, _ITERATIONS, _LEARNING_RATE, _WEIGHT_DECAY = 32, 300, 3e-3, 1e-2  # of the networks


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


def _vector(known: Signals, member: Tensor) -> Score:
    def features(signals: Signals) -> Tensor:
        return torch.cat(list(signals.similarities.values()), 1)

    return _trained(lambda width: _mlp(width, 1), features, known, member)


def _set(known: Signals, member: Tensor) -> Score:
    scales = {kind: (values.mean(), values.std().clamp(min=1e-7)) for kind, values in known.similarities.items()}

    def features(signals: Signals) -> Tensor:
        """``(n, pairs, 1 + kinds)``: each cosine, and of which kind it is."""
        parts = []
        for index, (kind, values) in enumerate(signals.similarities.items()):
            mean, deviation = scales[kind]
            one_hot = torch.eye(len(scales))[index].expand(*values.shape, -1)
            parts.append(torch.cat([((values - mean) / deviation)[..., None], one_hot], -1))
        return torch.cat(parts, 1)

    return _trained(_DeepSet, features, known, member)


ATTACKS = (
    Attack("loss", "loss, threshold", _loss),
    Attack("white-box", "losses and gradients", _white_box),
    Attack("encoder-threshold", "EncoderMI, threshold", _similarity),
    Attack("encoder-vector", "EncoderMI, vector", _vector),
    Attack("encoder-set", "EncoderMI, set", _set),
)


class _DeepSet(nn.Module):
    """A function of a set: what a network makes of each element, averaged, then a second network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each, self.all = _mlp(width, _HIDDEN), _mlp(_HIDDEN, 1)

    def forward(self, elements: Tensor) -> Tensor:
        """``(n, elements, width)`` -> ``(n, 1)``."""
        return self.all(self.each(elements).mean(1))


def _mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, out))


def _means(signals: Signals) -> Tensor:
    """``(n, kinds)``: the mean cosine of each kind."""
    return torch.stack([values.mean(1) for values in signals.similarities.values()], 1)


def _standardiser(known: Tensor) -> Callable[[Tensor], Tensor]:
    mean, deviation = known.mean(0), known.std(0)
    deviation = torch.where(deviation > 1e-7, deviation, 1.0)  # what never varies says nothing
    return lambda x: (x - mean) / deviation


def _trained(build: Callable[[int], nn.Module], features: Callable[[Signals], Tensor], known: Signals, member: Tensor) -> Score:
    """A network fitted to the known records: full batches, AdamW, the same starting weights every time."""
    x, y = features(known), member.float()
    scaled = _standardiser(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build(x.shape[-1])
    optimizer = torch.optim.AdamW(network.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    with torch.enable_grad():
        for _ in range(_ITERATIONS):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(network(scaled(x))[:, 0], y).backward()
            optimizer.step()

    @torch.no_grad()
    def score(signals: Signals) -> np.ndarray:
        return network(scaled(features(signals)))[:, 0].numpy()

    return score
