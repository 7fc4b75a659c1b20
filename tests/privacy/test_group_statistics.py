"""What figures of the groups cost beside their gradients, and what a plan with them is."""

import math

import pytest

from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan

PROGRESS = {"share": 0.01, "quantile": 0.5, "loss_range": 4.0, "phase": 5}
NUMBERS = dict(records=2000, batch=256, group_size=4, clip_norm=0.7, steps=100, noise_multiplier=1.3, delta=1e-5)


def plan(**changes) -> PrivacyPlan:
    return PrivacyPlan.of(**NUMBERS | {"progress": PROGRESS} | changes)


METHODS = [
    {},
    {"method_name": "public", "group_size": 1, "options": {"public_records": 3}},
    {"method_name": "batch", "group_size": 256, "max_batch": 400, "progress": PROGRESS | {"share": 0.5}},
]


@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
@pytest.mark.parametrize("method", METHODS)
def test_one_sigma_is_shared_out_and_nothing_is_free(method, clipping, share):
    """1 / sigma^2 is the sum of what the noise on the gradients, and that on the figures, would be worth alone."""
    one = plan(**method, clipping=clipping)
    one = one.replace(progress=PROGRESS | {"share": share})
    of_gradients = one.bounding.method.sensitivity(one.parameters)
    whole = 2 if of_gradients == 2 * one.bounding.clip_norm else 1  # a group goes from one point to another, or comes and goes
    of_figures = whole * one.statistics.unit * math.sqrt(one.statistics_count) / 2
    alone = (one.noise_std / of_gradients) ** -2 + (one.noise_std / of_figures) ** -2
    assert alone == pytest.approx(one.noise.multiplier**-2, rel=1e-12)
    assert one.noise_std == pytest.approx(one.noise.multiplier * of_gradients / math.sqrt(1 - share), rel=1e-12)
    assert one.sensitivity == pytest.approx(math.hypot(of_gradients, of_figures), rel=1e-12)
    assert one.epsilon() == one.replace(progress={}, clipping="fixed").epsilon()
    assert one.longest_sum == pytest.approx(one.spread * one.sensitivity)


def test_a_plan_without_them_has_no_room_for_them():
    bare = PrivacyPlan.of(**NUMBERS)
    assert (bare.sensitivity, bare.statistics, bare.statistics_count) == (2 * 0.7, None, 0)


@pytest.mark.parametrize(
    "changes", [{}, {"clipping": "adaptive"}, {"clipping": "automatic", "stability": 0.01, "progress": {}}]
)
def test_a_plan_with_statistics_has_its_own_fingerprint(changes):
    one = plan(**changes)
    assert PrivacyPlan.from_dict(one.as_dict()) == one
    others = [PrivacyPlan.of(**NUMBERS), plan(progress=PROGRESS | {"share": 0.02}), plan(progress=PROGRESS | {"quantile": 0.6})]
    assert one.fingerprint not in {other.fingerprint for other in others}


def test_how_many_groups_have_a_gradient_is_a_public_number():
    """Against the binomial distribution, term by term."""
    one = plan()
    rate = one.sampling.rate / one.groups
    two = 1 - sum(math.comb(2000, k) * rate**k * (1 - rate) ** (2000 - k) for k in (0, 1))
    assert one.statistics.groups == pytest.approx(64 * two, rel=1e-9)
    assert plan(**METHODS[1]).statistics.groups == 256
    assert plan(batch=2000, group_size=2000).statistics.groups == 1


TREE = {"diagnostics": "private", "privacy": {"noise_multiplier": 1.0, "batch": 256, "steps": 20}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bounding": {"method": "sample"}}, "one gradient for each group .batch, group, public"),
        ({"bounding": {"method": "none"}, "privacy": {"batch": 256}}, "no effect without privacy"),
        ({"bounding": {"method": "batch"}}, "Raise progress.share .*noise-alone"),
        ({"diagnostics": "none", "bounding": {"clipping": "adaptive"}}, "set diagnostics = 'private'"),
        ({"diagnostics": "none", "bounding": {"method": "logit", "clipping": "automatic"}}, "not for 'logit'"),
        ({"progress": {"phase": 21}}, r"progress.phase must lie in 1..20 \(the steps\), got 21"),
        ({"progress": {"share": 1.0}}, "progress.share"),
        ({"objective": {"name": "barlow_twins"}}, "give progress.loss_range"),
        ({"diagnostics": "none", "progress": {"share": 0.1}}, "'progress.share' has .* diagnostics = 'none'.*setting-idle"),
        ({"bounding": {"clipping": "automatic", "clip_norm": 2.0}}, "'bounding.clip_norm' .*setting-idle"),
        ({"bounding": {"stability": 0.1}}, "set bounding.clipping = 'automatic'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes, said):
    with pytest.raises(UserError, match=said):
        plan_of(2000, parse_config(TREE | changes))


def test_an_error_that_is_no_number_is_noise_alone():
    with pytest.raises(UserError, match="noise-alone"):
        plan().statistics.refuse_noise_alone(math.nan)
