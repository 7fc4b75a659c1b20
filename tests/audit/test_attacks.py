"""Attacks find what is there, and find nothing where nothing is."""

import numpy as np
import pytest
import torch

from dpfed.audit.attacks import ATTACKS
from dpfed.audit.membership import Promise, attack_all
from dpfed.audit.rates import auc
from dpfed.audit.signals import Signals

NAMES = [attack.name for attack in ATTACKS]
by_name = pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)


def joined(*parts: Signals) -> Signals:
    return Signals(
        torch.cat([part.losses for part in parts]),
        torch.cat([part.gradients for part in parts]),
        {kind: torch.cat([part.similarities[kind] for part in parts]) for kind in parts[0].similarities},
    )


@by_name
def test_an_attack_finds_members_that_stand_out(attack, normal_signals):
    known, member = joined(normal_signals(200, closer=2.0), normal_signals(200)), torch.arange(400) < 200
    score = attack.fit(known, member)
    assert auc(score(normal_signals(300, closer=2.0)), score(normal_signals(300))).low > 0.85


@by_name
def test_an_attack_on_exchangeable_records_is_at_chance(attack, normal_signals):
    """Fitted to labels that mean nothing, and tried on others: over repetitions the interval holds one half as promised."""
    misses = 0
    for _ in range(5):
        score = attack.fit(normal_signals(100), torch.arange(100) % 2 == 0)
        area = auc(score(normal_signals(400)), score(normal_signals(400)))
        misses += not area.low <= 0.5 <= area.high
    assert misses <= 2  # P(more) is 0.12% if each misses with 5%


def test_attacks_see_the_labels_of_the_known_half_only(normal_signals):
    signals, member = joined(normal_signals(100, closer=1.0), normal_signals(100)), torch.arange(200) < 100
    known = torch.arange(200) % 2 == 0
    seen = []
    spies = [
        type(ATTACKS[0])(a.name, a.title, lambda s, m, a=a: seen.append((len(s), int(m.sum()))) or a.fit(s, m)) for a in ATTACKS
    ]
    attack_all(signals, member, known, "trained", Promise(1.0, 1e-5), spies)
    assert seen == [(100, 50)] * len(ATTACKS)


def test_outcomes_tell_memorising_from_chance(normal_signals):
    member, known = torch.arange(4000) < 2000, torch.arange(4000) % 2 == 0
    for closer in (3.0, 0.0):
        signals = joined(normal_signals(2000, closer), normal_signals(2000))
        outcomes = attack_all(signals, member, known, "trained", Promise(1.0, 1e-5))
        assert [outcome.attack for outcome in outcomes] == NAMES
        assert [point.fpr for point in outcomes[0].points] == [0.01, 0.001]  # a thousand resolve a thousandth
        for outcome in outcomes:
            rate = outcome.points[0].tpr
            assert outcome.points[0].most == pytest.approx(0.01 * np.e + 1e-5)
            if closer:
                assert rate.low > 0.3 and outcome.auc.low > 0.9
            else:
                assert rate.value < 0.03 and rate.low <= 0.01 <= rate.high and outcome.auc.low <= 0.5 <= outcome.auc.high
    assert attack_all(signals, member, known, "trained", Promise(None, 1e-5))[0].points[0].most is None
