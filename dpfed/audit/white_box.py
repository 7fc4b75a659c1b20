"""Scores of canaries in the white box: how much what left each step speaks for a canary's presence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpfed.audit.boards import Board
from dpfed.audit.leaving import SUMS, WEIGHTS
from dpfed.audit.under_test import sign_of
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent, Watcher

REPEATED = "noisy sums, without what repeats itself"


@dataclass(frozen=True)
class Scores:
    """Of one run.

    Attributes:
        coins: ``(m,)`` bool, whether each canary was there.
        alone: ``(T, m)`` bool, whether nobody else could show where it does.
        channels: what was looked at -> ``(T, m)``, higher where the canary seems to be there.
    """

    coins: np.ndarray
    alone: np.ndarray
    channels: dict[str, np.ndarray]

    def of_runs(self) -> dict[str, np.ndarray]:
        """``(m,)`` for each channel: all steps together."""
        return {name: values.sum(0) for name, values in self.channels.items()}

    def of_blocks(self, steps: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Of blocks of so many steps, and of the canaries that were alone in all of them.

        Returns:
            ``(n, 3)``: number of the canary, of the block, and the coin; and ``(n,)`` scores for each channel.
        """
        blocks = len(self.alone) // steps
        shape = (blocks, steps, len(self.coins))
        alone = self.alone[: blocks * steps].reshape(shape).all(1)
        block, canary = np.nonzero(alone)
        which = np.stack([canary, block, self.coins[canary]], 1)
        return which, {name: v[: blocks * steps].reshape(shape).sum(1)[alone] for name, v in self.channels.items()}


def score(board: Board, coins: np.ndarray, owners: Randomness, noise: Randomness, watcher: Watcher | None = None) -> Scores:
    """Runs a mechanism with some of its canaries, and scores all of them.

    The scores are logarithms of likelihood ratios, as the claimed noise and the claimed rate give them. They may be as wrong as
    they like: what follows from them is a lower bound all the same.

    Args:
        board: the mechanism.
        coins: ``(m,)`` bool, which canaries are there.
        owners: draws records, groups and views.
        noise: the coordinator's secret.
        watcher: sees the steps.
    """
    under, plan = board.under, board.under.parts.plan
    # Statistics that a method releases besides have noise of their own, in which the two sums would differ.
    known = plan.bounding.method.gradient_share(plan) == 1
    advance = (watcher or Silent()).stage("steps", plan.steps)
    alone, taken, rest = [], [], []
    channels: dict[str, list[np.ndarray]] = {}
    without = under.sums(under.present(np.zeros_like(coins)), owners)
    for step, seen in enumerate(under.live(under.present(coins), owners, noise)):
        places, free = board.places(step, owners)
        base = next(without).numpy() if known else 0.0
        alone.append(free)
        taken.append(places)
        for name, values in seen.items():
            left = values.numpy() if name == WEIGHTS else _less(values.numpy(), base, name)
            channels.setdefault(name, []).append(sign_of(step) * left[places])
            if name == SUMS:
                rest.append(left.astype(np.float32))
        advance(step + 1)
    middle = np.median(np.stack(rest), 0)
    channels[REPEATED] = [
        sign_of(step) * (values - middle)[places] for step, (values, places) in enumerate(zip(rest, taken, strict=True))
    ]
    shows = np.stack(taken) >= 0
    scored = {}
    for name, parts in channels.items():
        moved = np.stack(parts)
        scored[name] = np.where(shows, moved if name == WEIGHTS else _log_ratio(moved, board), 0.0)
    return Scores(coins, np.stack(alone), scored)


def _less(values: np.ndarray, base: np.ndarray | float, name: str) -> np.ndarray:
    if isinstance(base, np.ndarray):
        base = base[: len(values)]  # behind the gradients of a sum, its groups may have other figures
    return values - np.abs(base) if name.endswith("_sq") else values - base


def _log_ratio(moved: np.ndarray, board: Board) -> np.ndarray:
    """Log-likelihood ratio of N(0, s^2), mixed with N(shift, s^2) at the sampling rate, to N(0, s^2)."""
    plan, shift = board.under.parts.plan, board.shift
    rate = min(plan.sampling.rate, 1.0)
    exponent = (moved * shift - shift**2 / 2) / plan.noise_std**2
    return exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
