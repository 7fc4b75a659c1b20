"""The matrix of docs/audit.md: audits catch mechanisms that are broken on purpose, and do not accuse sound ones."""

import itertools

import pytest
import torch

from dpfed.audit.privacy import audit_claim
from dpfed.audit.publishing import as_json
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.privacy import accounting
from dpfed.privacy.method import method_named
from dpfed.privacy.randomness import Randomness
from dpfed.report.audit import verdict
from tests.audit import sabotage

EXPERIMENTS = 3000
BROKEN = {
    "half the noise": (sabotage.half_the_noise, {}, {}),
    "half the noise, public contrast": (sabotage.half_the_noise, {"method": "public"}, {}),
    "half the noise, clipped batch": (sabotage.half_the_noise, {"method": "batch"}, {"experiments": 2000}),
    "half the discrete noise": (sabotage.half_the_discrete_noise, {"noise": "discrete"}, {}),
    "sensitivity C instead of 2C": (sabotage.sensitivity_c, {}, {}),
    "shuffled chunks": (sabotage.shuffled_chunks, {}, {}),
    "draws by position": (sabotage.draws_by_position, {}, {}),
    "accounts for half the rate": (sabotage.accounts_for_half_the_rate, {"rate": 0.5, "sigma": 0.7}, {"experiments": 5000}),
    "draws at twice the rate": (sabotage.draws_at_twice_the_rate, {"rate": 0.5, "sigma": 0.7}, {"experiments": 5000}),
    "fixed noise": (sabotage.fixed_noise, {}, {}),
    "noise in every other step": (sabotage.noise_in_every_other_step, {}, {}),
    "clean optimizer state": (sabotage.clean_optimizer_state, {}, {}),
    "weights from the clean sum": (sabotage.weights_from_the_clean_sum, {"optimizer": "sgd"}, {}),
    "figures with the whole range of a loss": (sabotage.figures_without_a_range, {"diagnostics": "private"}, {}),
    "clip after summing, to K C": (sabotage.clip_after_summing, {}, {}),
}
SOUND = {
    "group": ({}, {}),
    "group, loop, sampled": ({"rate": 0.3, "engine": "loop"}, {}),
    "group, layerwise, SGD": ({"engine": "layerwise", "optimizer": "sgd"}, {}),
    "group, discrete noise": ({"noise": "discrete"}, {}),
    "group, two workers": ({}, {"world_size": 2}),
    "group, private progress": ({"diagnostics": "private"}, {}),
    "group, automatic clipping": ({"clipping": "automatic"}, {}),
    "group, users": ({"unit": "user", "per_unit": 2}, {}),
    "public": ({"method": "public"}, {}),
    "batch": ({"method": "batch"}, {"experiments": 1500}),
    "sample": ({"method": "sample"}, {"experiments": 1500}),
    "logit": ({"method": "logit"}, {"experiments": 1500}),
    "released": ({"method": "released"}, {"experiments": 1500}),
}


def claim_of(
    method="group", rate=1.0, sigma=1.0, engine="auto", optimizer="adam", clipping="fixed", diagnostics="none", **privacy
):
    tree = {
        "name": "claim",
        "diagnostics": diagnostics,
        "bounding": {"method": method, "clipping": clipping, **({} if engine == "auto" else {"engine": engine})},
        "privacy": {"noise_multiplier": sigma, "batch": int(2000 * rate), "steps": 8, **privacy},
        "optimizer": {"name": optimizer, "learning_rate": 0.1},
        **({"public": {"source": "shapes"}} if method == "public" else {}),
    }
    config = parse_config(tree)
    return config, plan_of(2000, config)


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    """The same secrets in every test run, and no cache of what a broken mechanism would cost or be."""
    seeds, threads = itertools.count(), torch.get_num_threads()
    monkeypatch.setattr(Randomness, "fresh", lambda: Randomness.from_seed(next(seeds)))
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    monkeypatch.undo()
    method_named.cache_clear()
    accounting._epsilon.cache_clear()


def audited(of, how):
    accounting._epsilon.cache_clear()
    return audit_claim(*claim_of(**of), how.get("world_size", 1), how.get("experiments", EXPERIMENTS))


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mechanism_is_caught(name, monkeypatch):
    break_it, of, how = BROKEN[name]
    break_it(monkeypatch)
    audit = audited(of, how)
    print(f"{name}: {verdict(as_json(audit))}")
    assert audit.contradicted


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_mechanism_is_not_accused(name):
    audit = audited(*SOUND[name])
    print(f"{name}: {verdict(as_json(audit))}")
    assert not audit.contradicted
    assert audit.moved <= audit.sensitivity


@pytest.mark.slow
def test_a_sum_that_is_clipped_to_c_keeps_the_claim(monkeypatch):
    sabotage.sum_clipped_to_c(monkeypatch)
    assert not audited({}, {}).contradicted
