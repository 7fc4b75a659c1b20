"""`dpfed audit privacy`: what it finds, says, writes and refuses."""

import dataclasses
import itertools
import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.verification import verify
from dpfed.audit import privacy, publishing
from dpfed.audit.findings import Effort, Finding, PrivacyAudit
from dpfed.audit.lower_bounds import Shown
from dpfed.audit.neighbours import most_moved
from dpfed.audit.privacy import audit_claim
from dpfed.audit.publishing import Trial, audit_run
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.report.audit import is_audit, verdict
from tests.audit import sabotage

QUICK = Effort(canaries=32, steps=2, experiments=800)


def tree(**bounding):
    privacy = {"noise_multiplier": 1.0, "batch": 500, "steps": 4}
    return {"name": "claim", "data": {"source": "shapes", "records": 500}, "bounding": bounding, "privacy": privacy}


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    seeds, threads = itertools.count(), torch.get_num_threads()
    monkeypatch.setattr(Randomness, "fresh", lambda: Randomness.from_seed(next(seeds)))
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def claim(**changes) -> PrivacyAudit:
    facts = dict(attack="repeated", steps=1, rate=1.0, tries=800, channel="noisy sums", claim=4.0, epsilon=1.0, of_run=False)
    found = Finding(**{**facts, "noise": 1.2, "epsilon_f_dp": 5.0, "contradicts": False, **changes})
    run = Finding(
        **{**facts, "attack": "one run", "of_run": True, "noise": math.inf, "epsilon_f_dp": 0.0, "contradicts": False}
    )
    return PrivacyAudit("claim", "group", 1, None, 8.0, 1e-5, 1.0, 2.0, 2.0, (found, run))


def config_and_plan(**bounding):
    config = parse_config(tree(**bounding))
    return config, PrivacyPlan.from_config(500, config)


def test_a_sound_mechanism_is_not_accused_and_no_noise_is_caught(monkeypatch):
    sound = audit_claim(*config_and_plan(), effort=QUICK)
    assert not sound.contradicted and 0 < sound.shown < sound.claim
    assert sound.moved == pytest.approx(2.0, rel=1e-3)
    sabotage.fixed_noise(monkeypatch)
    broken = audit_claim(*config_and_plan(), effort=QUICK)
    assert broken.contradicted and broken.shown > broken.claim


def test_what_moves_the_sum_too_far_is_caught_without_any_statistics(monkeypatch):
    sabotage.shuffled_chunks(monkeypatch)
    broken = audit_claim(*config_and_plan(), effort=Effort(16, 1, 400))
    assert broken.too_far and "moved the sum by" in verdict(publishing.as_json(broken))


@pytest.mark.parametrize("method", ["none", "dpcl"])
def test_what_claims_nothing_is_refused(method):
    changes = tree(method=method)
    if method == "none":
        del changes["privacy"]["noise_multiplier"]
    config = parse_config(changes)
    with pytest.raises(UserError, match="claims no privacy"):
        audit_claim(config, PrivacyPlan.from_config(500, config))


def test_only_a_bound_of_the_run_itself_is_compared_with_the_claim():
    audit = claim(epsilon=100.0)  # of one step at a rate that is not the run's
    assert audit.shown == 5.0 and not audit.contradicted
    said = verdict(publishing.as_json(audit))
    assert "at least epsilon 5.00, with 95% confidence; the claim is epsilon 8.00" in said and "Nothing contradicts" in said
    assert "audit again" in verdict(publishing.as_json(claim(epsilon_f_dp=8.5)))


def test_the_command_writes_a_file_and_a_picture_and_ends_with_3_if_the_claim_is_contradicted(dpfed, tmp_path, monkeypatch):
    for number, (audit, ends) in enumerate([(claim(), 0), (claim(contradicts=True, epsilon_f_dp=20.0), 3)]):
        monkeypatch.setattr(publishing, "audit_claim", lambda *_, audit=audit, **__: audit)
        place = tmp_path / "deep" / str(number)
        code, out, _ = dpfed("audit", "privacy", "quickstart", "--out", place)
        assert code == ends
        assert ("is contradicted" in out) == (ends == 3) and "no proof" in out
        facts = json.loads((place / "privacy_audit.json").read_text())
        assert facts["contradicted"] == (ends == 3) and facts["findings"][1]["noise"] is None
        assert (place / "privacy_audit.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = dpfed("audit", "privacy", "quickstart", "--out", tmp_path / "again", "--json")
    assert code == 3 and json.loads(out)["claim"] == 8.0


@pytest.mark.parametrize(
    "words, says",
    [
        (["--trust", "secret"], "'secure'"),
        (["--trust", "secure"], "--federated"),
        (["--federated", 2, "--workers", 2], "either"),
        (["--workers", 60, "--set", "privacy.batch=64"], "use at most"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(dpfed, tmp_path, words, says):
    code, _, error = dpfed("audit", "privacy", "quickstart", "--out", tmp_path / "out", *words)
    assert code == 2 and says in error and not (tmp_path / "out").exists()


@pytest.fixture
def run(audited, tmp_path) -> RunDirectory:
    shutil.copytree(audited.path, tmp_path / "run", ignore=shutil.ignore_patterns("audit"))
    return RunDirectory(tmp_path / "run")


def test_card_and_report_of_a_run_state_its_audit(run, monkeypatch):
    monkeypatch.setattr(publishing, "audit_claim", lambda *_, **__: claim())
    path, _ = audit_run(run.path, Trial(), QUICK)
    assert path == run.path / "privacy_audit.json"
    card, report = run.card.read_text(), run.report.read_text()
    assert "| Audit of the claim (`dpfed audit privacy`) | 20" in card and "at least epsilon 5.00" in card
    assert "one worker: Canaries show" in card
    assert "by attack: repeated, 1 step at q = 1: 5.00; one run, 1 step at q = 1: 1.00" in card
    assert "Attacks on the claim" in report
    assert not any(check.wrong for check in verify(run.card, run.path))


def test_a_contradicted_claim_voids_the_card(run, monkeypatch):
    monkeypatch.setattr(publishing, "audit_claim", lambda *_, **__: claim(contradicts=True))
    audit_run(run.path, Trial(), QUICK)
    assert "no privacy guarantee holds" in run.card.read_text().partition("\n")[0]
    assert json.loads(run.results.read_text())["privacy"]["guarantee"] is False
    assert not any(check.wrong for check in verify(run.card, run.path))
    with pytest.raises(UserError, match="no other audit takes that back"):
        audit_run(run.path, Trial(), QUICK)


def test_the_sites_of_a_run_are_its_own(run, monkeypatch):
    with pytest.raises(UserError, match="no run of a federation"):
        audit_run(run.path, Trial(2, "secure"), QUICK)
    monkeypatch.setattr(publishing, "terms_of", lambda _: SimpleNamespace(sites=[1, 2, 3], trust="secure"))
    for trial in (Trial(2, "secure"), Trial(3, "central"), Trial(3)):
        with pytest.raises(UserError, match="3 sites with trust = 'secure'"):
            audit_run(run.path, trial, QUICK)
    seen = []

    def stop(*given):
        seen.append(given[2:4])
        raise UserError("far enough")

    monkeypatch.setattr(publishing, "assemble", lambda *_, **__: None)
    monkeypatch.setattr(publishing, "refuse_many_owners", lambda *_: None)
    monkeypatch.setattr(publishing, "audit_claim", stop)
    for trial in (Trial(), Trial(3, "secure")):
        with pytest.raises(UserError, match="far enough"):
            audit_run(run.path, trial, QUICK)
    assert seen == [(3, "secure")] * 2


def test_where_nothing_can_be_written_is_known_before_the_work(run, monkeypatch):
    monkeypatch.setattr(publishing.os, "access", lambda *_: False)
    with pytest.raises(UserError, match="cannot write its result"):
        audit_run(run.path, Trial(), QUICK)


def test_all_bounds_of_an_audit_share_one_error(monkeypatch):
    attacks = 2
    errors = set()

    def shown(*given):
        errors.add(round(given[-1], 9))
        return [Shown("noisy sums", 0.0, math.inf, 1, 0.0)]

    for name in ("of_repetitions", "of_one_run"):
        monkeypatch.setattr(privacy, name, shown)
    audit = audit_claim(*config_and_plan(), effort=QUICK)
    assert len(audit.findings) == attacks
    assert errors == {round(whole / (2 * attacks), 9) for whole in (0.05, 0.001)}
    assert audit.shown == 0.0


def test_a_lower_bound_that_is_no_number_does_not_clear_a_claim(monkeypatch):
    for name in ("of_repetitions", "of_one_run"):
        monkeypatch.setattr(privacy, name, lambda *_: [Shown("noisy sums", math.nan, math.inf, 1, 0.0)])
    audit = audit_claim(*config_and_plan(), effort=QUICK)
    assert audit.contradicted and all(finding.contradicts for finding in audit.findings)


def test_there_may_be_more_owners_than_groups_in_a_small_mechanism(monkeypatch):
    monkeypatch.setattr(privacy._Trial, "attacks", lambda trial: [trial.one_run])
    audit = audit_claim(*config_and_plan(), 6, "central", Effort(16, 1))
    assert not audit.contradicted and (audit.owners, audit.trust) == (6, "central")


def test_records_that_are_hardly_ever_drawn_need_no_millions_of_others(monkeypatch):
    changes = tree() | {"privacy": {"noise_multiplier": 1.0, "batch": 16, "steps": 4, "delta": 1e-9}}
    config = parse_config(changes)
    monkeypatch.setattr(privacy._Trial, "attacks", lambda trial: [trial.one_run])
    audit = audit_claim(config, PrivacyPlan.from_config(10_000_000, config), effort=Effort(16, 1))
    assert not audit.findings[-1].of_run and not audit.contradicted


@pytest.mark.parametrize("text", ["{", "[]", '{"findings": []}', '{"findings": [{"epsilon": "much"}]}'])
def test_a_damaged_audit_is_a_sentence(run, text):
    (run.path / "privacy_audit.json").write_text(text)
    with pytest.raises(UserError, match="damaged"):
        run.privacy_audit  # noqa: B018


def test_an_unfinished_run_is_refused(run):
    run.results.unlink()
    with pytest.raises(UserError, match="not finished"):
        audit_run(run.path, Trial(), QUICK)


def test_figures_that_are_no_numbers_never_clear_a_claim():
    audit = claim()
    assert not audit.contradicted
    for moved in (math.nan, math.inf):
        spoilt = dataclasses.replace(audit, moved=moved)
        assert spoilt.contradicted and "contradicted" in verdict(publishing.as_json(spoilt))
    facts = publishing.as_json(audit) | {"day": "2026-01-01"}
    assert is_audit(facts)
    for name in ("moved", "shown", "claim", "sensitivity", "delta"):
        assert not is_audit(facts | {name: math.nan})


@pytest.mark.parametrize("sums", [math.nan, math.inf])
def test_sums_that_are_not_finite_are_no_small_distance(monkeypatch, sums):
    """`max(0.0, nan)` is 0.0: such a mechanism would have passed as one that no record moves."""
    plan = SimpleNamespace(method=SimpleNamespace(gradient_share=lambda plan: 1, picks_engine=False))
    case = SimpleNamespace(sums=lambda present, randomness: [torch.full((3,), sums)])
    under = SimpleNamespace(
        parts=SimpleNamespace(plan=plan), canaries=4, fillers=1, present=lambda rows: rows, with_model=lambda *_: case
    )
    assert most_moved(under) == math.inf
