"""The constants of Logit-DP against everything that neighbours can do to the weights of the similarities."""

import itertools
import math

import pytest
import torch

from dpfed.baselines.whole_batch.jacobian_norms import contrastive_derivatives, spread_out_derivatives
from dpfed.baselines.whole_batch.pair_options import contrastive_change, contrastive_change_below_cap, spread_out_change


def changes(derivatives, batch, neighbour, rows, columns):
    """Sum of absolute changes of the weights of all pairs.

    `rows` and `columns` are those of the records that both batches hold, in the order of either; the rest is counted in full.
    """
    before, after = derivatives(batch), derivatives(neighbour)
    common = (before[rows[0]][:, columns[0]] - after[rows[1]][:, columns[1]]).abs().sum()

    def rest(weights, rows, columns):
        kept = torch.zeros(weights.shape[:2], dtype=torch.bool)
        kept[torch.tensor(rows)[:, None], torch.tensor(columns)] = True
        return weights[~kept].abs().sum()

    return float(common + rest(before, rows[0], columns[0]) + rest(after, rows[1], columns[1]))


def swapped(derivatives, batch, neighbour):
    """The last record of a full batch is another one in the neighbour."""
    stay = list(range(len(batch) - 1))
    return changes(derivatives, batch, neighbour, (stay, stay), (stay, stay))


def joined(derivatives, batch):
    """The last record was not there before."""
    stay = list(range(len(batch) - 1))
    return changes(derivatives, batch[:-1, :-1], batch, (stay, stay), (stay, stay))


def corner(n, candidates, last_weighs_most):
    """Similarities of +1 and -1 that make the last record weigh as much, or as little, as it can for all others."""
    similarities = torch.full((n, n, candidates), -1.0 if last_weighs_most else 1.0, dtype=torch.float64)
    similarities[:, -1] *= -1
    similarities[-1] = 1
    similarities[-1, -1, 0] = -1
    return similarities


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_no_neighbour_exceeds_the_constant_a_corner_reaches(n, temperature, candidates):
    def derivatives(similarities):
        return contrastive_derivatives(similarities.clone(), temperature)

    bound, below = (f(n, temperature, candidates) for f in (contrastive_change, contrastive_change_below_cap))
    worst_swap = worst_join = 0.0
    generator = torch.Generator().manual_seed(0)
    for trial in range(200):
        batch, neighbour = 2 * torch.rand(2, n, n, candidates, generator=generator, dtype=torch.float64) - 1
        if trial % 2:
            batch, neighbour = batch.sign(), neighbour.sign()
        if trial == 0:
            batch, neighbour = (corner(n, candidates, last_weighs_most=True) for _ in range(2))
        neighbour[:-1, :-1] = batch[:-1, :-1]
        worst_swap = max(worst_swap, swapped(derivatives, batch, neighbour))
        worst_join = max(worst_join, joined(derivatives, batch))
    assert bound * (1 - 1e-6) <= worst_swap <= bound * (1 + 1e-9)
    assert below * (1 - 1e-6) <= worst_join <= below * (1 + 1e-9)
    assert below < bound


@pytest.mark.parametrize("n", [2, 3, 4])
def test_no_corner_at_all_exceeds_the_constant(n):
    """Anchors change independently of each other, so a search of every anchor's corners is a search of all."""

    def derivatives(similarities):
        return contrastive_derivatives(similarities.clone(), 1.0)

    worst = [0.0, 0.0]
    for signs in itertools.product((-1.0, 1.0), repeat=n + 1):
        for anchor in (0, n - 1):  # an anchor that stays, and the one that is new
            batch = torch.zeros(n, n, 1, dtype=torch.float64)
            batch[anchor, :, 0] = torch.tensor(signs[:n])
            neighbour = batch.clone()
            neighbour[:-1, -1] = signs[n] if anchor == 0 else 0.0
            before, after = derivatives(batch)[anchor, :, 0], derivatives(neighbour)[anchor, :, 0]
            if anchor == 0:
                change = (before[:-1] - after[:-1]).abs().sum() + before[-1] + after[-1]
            else:
                change = before.abs().sum()
            worst[anchor > 0] = max(worst[anchor > 0], float(change))
    # The new anchor counts twice: its record's in one batch, the other record's in the other.
    assert (n - 1) * worst[0] + 2 * worst[1] == pytest.approx(contrastive_change(n, 1.0), rel=1e-9)


def test_the_constant_of_the_paper_is_exceeded():
    """Its lemma 4.5: the proof gives one name to two probabilities, the new record's own and what it weighs for others."""
    for n in (2, 3, 10, 1000):
        paper = 2 * (1 + (n - 2) * math.e**2 / (math.e**2 + n - 1))
        reached = joined(lambda s: contrastive_derivatives(s.clone(), 1.0), corner(n, 1, last_weighs_most=True))
        assert reached > paper
        assert reached == pytest.approx(contrastive_change_below_cap(n, 1.0), rel=1e-9)
    assert contrastive_change_below_cap(2, 1.0) > 1.7 * 2  # most of all for small batches


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize("n", [2, 3, 12])
def test_the_spread_out_constant_holds_and_is_reached(n, candidates):
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for trial in range(100):
        batch, neighbour = (2 * torch.rand(2, n, n, candidates, generator=generator, dtype=torch.float64) - 1).sign()
        if trial % 2:
            batch *= 0.3
        neighbour[:-1, :-1] = batch[:-1, :-1]
        worst = max(worst, swapped(spread_out_derivatives, batch, neighbour))
        if n > 2:
            assert joined(spread_out_derivatives, batch) <= 6 + 1e-9  # the paper's lemma 4.6
    assert 0.999 * spread_out_change() <= worst <= spread_out_change() + 1e-9
