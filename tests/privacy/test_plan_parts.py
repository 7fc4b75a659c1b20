"""Each part of a plan, and the plan of its parts, refuses what cannot be: in a sentence that names the number."""

import math

import pytest

from dpfed.building.plan import describes, plan_of
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan

NUMBERS = dict(records=1000, batch=100, group_size=4, clip_norm=1.0, steps=10, noise_multiplier=1.0, delta=1e-5)
PROGRESS = {"share": 0.01, "quantile": 0.5, "loss_range": 4.0, "phase": 5}
NONE, BATCH = {"method_name": "none", "noise_multiplier": 0.0}, {"method_name": "batch", "max_batch": 200}
USERS = {"unit": "user", "per_unit": 2}


def rows(said: str, *changes: dict) -> list:
    return [(one, said) for one in changes]


PLAIN = [
    *rows("records must be a whole number", {"records": "600"}, {"records": True}, {"records": None}),
    *rows("batch must be a whole number, got 60.0", {"batch": 60.0}),
    *rows("steps must be a whole number, got 5.5", {"steps": 5.5}),
    *rows("delta must be a number, got '1e-5'", {"delta": "1e-5"}),
    *rows("noise_multiplier must be a number", {"noise_multiplier": True}),
    *rows("clip_norm must be a number", {"clip_norm": "1"}),
    *rows("group_size must be a whole number", {"group_size": "4"}, {"group_size": None}),
    *rows("max_group_size must be a whole number", {"max_group_size": "9"}, {"max_group_size": 9.5}),
]
PROMISE = [
    *rows("delta must lie strictly", {"delta": 0.0}, {"delta": 1.0}, {"delta": math.nan}),
    *rows("target_epsilon must be positive and finite", *({"target_epsilon": bad} for bad in (math.nan, math.inf, 0.0, -3.0))),
    *rows("unit must be 'record' or 'user'", {"unit": "patient"}),
    *rows("accountant must be one of pld, rdp with method 'group'", {"accountant": "moments"}, {"accountant": None}),
]
SAMPLING = [
    *rows("number of training records .* must lie in 2", {"records": 1, "batch": 1}),
    *rows(r"batch must lie in 1\.\.1,000", {"batch": 1001}, {"batch": 0}),
    *rows("per_unit must be at least 1", USERS | {"per_unit": 0}),
]
BOUNDING = [
    *rows("method must be one of", {"method_name": "groups"}, {"method_name": ["group"]}),
    *rows("options must be a dictionary", {"options": None}),
    *rows("options.share must be finite", {"options": {"share": math.nan}}, {"options": {"share": math.inf}}),
    *rows("max_batch is a cap that method 'group' does not need", {"max_batch": 200}),
    *rows("group_size must be 1", {"method_name": "public"}, {"method_name": "public", "group_size": 1, "max_group_size": 2}),
    *rows("max_group_size is for groups", BATCH | {"max_group_size": 4}),
    *rows("clip_norm must be positive", *({"clip_norm": bad} for bad in (0.0, -1.0, 1e10, math.nan, math.inf))),
    *rows("max_group_size must be at least 2", {"max_group_size": 1}),
    *rows("clipping must be", {"clipping": "soft"}),
    *rows("no effect without privacy", NONE | {"clipping": "automatic", "stability": 0.1}),
    *rows("not for 'logit'", BATCH | {"method_name": "logit", "clipping": "automatic", "stability": 0.1}),
    *rows("stability must be positive", {"stability": 0.1}, {"clipping": "automatic"}),
    *rows(
        "stability must be positive and finite", *({"clipping": "automatic", "stability": bad} for bad in (math.nan, math.inf))
    ),
]
NOISE = [
    *rows("noise_multiplier must be at least", *({"noise_multiplier": bad} for bad in (-1.0, 0.01, math.nan))),
    *rows("noise_multiplier must be at most", {"noise_multiplier": math.inf}, {"noise_multiplier": 1e9}),
    *rows("must be 'gaussian' or 'discrete', got 'laplace'", {"noise_kind": "laplace"}),
    *rows("must be at most 1000 ", {"noise_kind": "discrete", "noise_multiplier": 1001.0}),
]
FIGURES = [
    *rows("progress must hold", {"progress": {"share": 0.01}}, {"progress": None}, {"progress": [1]}),
    *rows("progress.share must lie strictly", *({"progress": PROGRESS | {"share": bad}} for bad in (0.0, 1.0, math.nan))),
    *rows("progress.quantile must lie strictly", {"progress": PROGRESS | {"quantile": 1.0}}),
    *rows(
        "progress.loss_range must be positive and finite",
        *({"progress": PROGRESS | {"loss_range": bad}} for bad in (0.0, math.inf)),
    ),
    *rows("progress.phase must be at least 1", {"progress": PROGRESS | {"phase": 0}}),
    *rows("progress.phase must be a whole number", {"progress": PROGRESS | {"phase": 1.5}}),
]
TOGETHER = [
    *rows("steps must lie in 1", {"steps": 0}),
    *rows(r"group_size must lie in 1\.\.100", {"group_size": 101}, {"group_size": 0}),
    *rows("needs a cap, max_batch, of at least 100 ", BATCH | {"max_batch": None}, BATCH | {"max_batch": 99}),
    *rows("needs a cap, max_batch, of at least 2 ", BATCH | {"batch": 1, "max_batch": 1}),
    *rows("every record takes part in each of 2 steps", {"method_name": "moments", "group_size": 1}),
    *rows("every record takes part in each of 2", {"method_name": "moments", "group_size": 1, "batch": 1000, "steps": 3}),
    *rows("per_unit = 2 is for privacy.unit = 'user'", {"per_unit": 2}),
    *rows("the sensitivity of method 'sample' is for single records", BATCH | USERS | {"method_name": "sample"}),
    *rows("noise_multiplier must be 0", NONE | {"noise_multiplier": 1.0}),
    *rows("noise_multiplier must be positive", {"noise_multiplier": 0.0}),
    *rows("method 'sample' does not have: use", BATCH | {"method_name": "sample", "noise_kind": "discrete"}),
    *rows("set diagnostics = 'private'", {"clipping": "adaptive"}),
    *rows("has no effect without privacy", NONE | {"progress": PROGRESS}),
    *rows(r"progress.phase must lie in 1\.\.10", {"progress": PROGRESS | {"phase": 11}}),
]


@pytest.mark.parametrize(("changes", "said"), [*PLAIN, *PROMISE, *SAMPLING, *BOUNDING, *NOISE, *FIGURES, *TOGETHER])
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(UserError, match=f"{said}.*plan-impossible"):
        PrivacyPlan.of(**NUMBERS | changes)


@pytest.mark.parametrize("changes", [{}, NONE, BATCH, USERS, {"progress": PROGRESS}, {"noise_kind": "discrete"}])
def test_what_can_be_is_taken(changes):
    assert NUMBERS | changes == {name: PrivacyPlan.of(**NUMBERS | changes).as_dict()[name] for name in NUMBERS | changes}


@pytest.mark.long
def test_a_plan_with_too_little_noise_for_epsilon_is_refused(tiny):
    """Whoever wrote the terms or the ledger: a plan that names an epsilon has the noise that keeps it."""
    config = parse_config(tiny)
    plan = plan_of(600, config)
    less, more = (plan.replace(noise_multiplier=factor * plan.noise.multiplier) for factor in (0.99, 1.01))
    assert describes(config, plan) and describes(config, more)
    assert less.promise.target_epsilon < less.epsilon() < 1.1 * less.promise.target_epsilon and not describes(config, less)


def test_numbers_too_many_or_given_twice_are_refused_as_python_does():
    numbers = list(PrivacyPlan.of(**NUMBERS).as_dict().values())
    assert PrivacyPlan.of(*numbers) == PrivacyPlan.of(**NUMBERS)
    with pytest.raises(TypeError, match=f"has {len(numbers)} numbers, got {len(numbers) + 1}; .*'more'"):
        PrivacyPlan.of(*numbers, "more")
    with pytest.raises(TypeError, match="batch twice"):
        PrivacyPlan.of(1000, 100, **{name: NUMBERS[name] for name in NUMBERS if name != "records"})
