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
from dpfed.audit.findings import Finding, PrivacyAudit
from dpfed.audit.lower_bounds import Shown
from dpfed.audit.privacy import audit_claim
from dpfed.audit.publishing import audit_run
from dpfed.audit.white_box import most_moved
from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
from dpfed.report.audit import is_audit, verdict
from tests.audit import sabotage

QUICK, FEW = 400, 40  # experiments; few where what they show is given


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
    facts = dict(steps=1, rate=1.0, tries=800, channel="noisy sums")
    finding = Finding(**{**facts, "noise": 1.2, "epsilon": 5.0, "contradicts": False, **changes})
    run = Finding(**{**facts, "noise": math.inf, "epsilon": 0.0, "contradicts": False})
    return PrivacyAudit("claim", "group", 1, 8.0, 1e-5, 1.0, 2.0, 2.0, (finding, run))


def config_and_plan(**bounding):
    config = parse_config(tree(**bounding))
    return config, plan_of(500, config)


@pytest.mark.long
def test_a_sound_mechanism_is_not_accused_and_no_noise_is_caught(monkeypatch):
    sound = audit_claim(*config_and_plan(), experiments=QUICK)
    assert not sound.contradicted and 0 < sound.shown < sound.claim
    assert sound.moved == pytest.approx(2.0, rel=1e-3)
    sabotage.fixed_noise(monkeypatch)
    broken = audit_claim(*config_and_plan(), experiments=QUICK // 2)
    assert broken.contradicted and broken.shown > broken.claim


@pytest.mark.long
def test_too_large_a_move_is_caught_without_statistics(monkeypatch):
    sabotage.shuffled_chunks(monkeypatch)
    broken = audit_claim(*config_and_plan(), experiments=FEW)
    assert broken.too_far and "moved the sum by" in verdict(publishing.as_json(broken))


@pytest.mark.parametrize("method", ["none", "dpcl"])
def test_what_claims_nothing_is_refused(method):
    changes = tree(method=method)
    if method == "none":
        del changes["privacy"]["noise_multiplier"]
    config = parse_config(changes)
    with pytest.raises(UserError, match="audit-no-claim"):
        audit_claim(config, plan_of(500, config))


def test_a_bound_below_the_claim_contradicts_nothing():
    audit = claim()
    assert audit.shown == 5.0 and not audit.contradicted
    said = verdict(publishing.as_json(audit))
    assert "at least epsilon 5.00, with 95% confidence; the claim is epsilon 8.00" in said and "Nothing contradicts" in said
    assert "audit again" in verdict(publishing.as_json(claim(epsilon=8.5)))


def test_the_command_ends_with_3_if_the_claim_is_contradicted(dpfed, tmp_path, monkeypatch):
    for number, (audit, ends) in enumerate([(claim(), 0), (claim(contradicts=True, epsilon=20.0), 3)]):
        monkeypatch.setattr(publishing, "audit_claim", lambda *_, audit=audit, **__: audit)
        place = tmp_path / "deep" / str(number)
        code, out, _ = dpfed("audit", "privacy", "quickstart", "--out", place)
        assert code == ends
        assert ("is contradicted" in out) == (ends == 3) and "nor proves privacy" in out
        facts = json.loads((place / "privacy_audit.json").read_text())
        assert facts["contradicted"] == (ends == 3) and facts["findings"][1]["noise"] is None
    code, out, _ = dpfed("audit", "privacy", "quickstart", "--out", tmp_path / "again", "--json")
    assert code == 3 and json.loads(out)["claim"] == 8.0


@pytest.mark.parametrize(
    "words, says", [(["--workers", 0], "--workers"), (["--workers", 60, "--set", "privacy.batch=64"], "use at most")]
)
def test_the_command_refuses_what_does_not_go_together(dpfed, tmp_path, words, says):
    code, _, error = dpfed("audit", "privacy", "quickstart", "--out", tmp_path / "out", *words)
    assert code == 2 and says in error and not (tmp_path / "out").exists()


@pytest.fixture
def run(audited, tmp_path) -> RunDirectory:
    shutil.copytree(audited.path, tmp_path / "run", ignore=shutil.ignore_patterns("audit"))
    return RunDirectory(tmp_path / "run")


@pytest.mark.long
def test_card_and_report_of_a_run_state_its_audit(run, monkeypatch):
    monkeypatch.setattr(publishing, "audit_claim", lambda *_, **__: claim())
    path, _ = audit_run(run.path, 1, QUICK)
    assert path == run.path / "privacy_audit.json"
    card, report = run.card.read_text(), run.report.read_text()
    assert "| Audit of the claim (`dpfed audit privacy`) | 20" in card and "at least epsilon 5.00" in card
    assert "ran on one worker. Canaries show" in card
    assert "5.00 by the repeated attack on 1 step at q = 1, 0.00 by the repeated attack on 1 step at q = 1." in card
    assert "Canaries show" in report
    assert not any(check.wrong for check in verify(run.card, run.path))


def test_a_contradicted_claim_voids_the_card(run, monkeypatch):
    monkeypatch.setattr(publishing, "audit_claim", lambda *_, **__: claim(contradicts=True))
    audit_run(run.path, 1, QUICK)
    assert "no privacy guarantee holds" in run.card.read_text().partition("\n")[0]
    assert json.loads(run.results.read_text())["privacy"]["guarantee"] is False
    assert not any(check.wrong for check in verify(run.card, run.path))
    with pytest.raises(UserError, match="audit-contradicted"):
        audit_run(run.path, 1, QUICK)


@pytest.mark.long
def test_all_bounds_of_an_audit_share_one_error(monkeypatch):
    attacks = 1
    errors = set()

    def shown(*given):
        errors.add(round(given[-1], 9))
        return [Shown("noisy sums", math.inf)]

    monkeypatch.setattr(privacy, "of_repetitions", shown)
    monkeypatch.setattr(privacy, "most_moved", lambda _: 2.0)
    audit = audit_claim(*config_and_plan(), experiments=FEW)
    assert len(audit.findings) == attacks
    assert errors == {round(whole / attacks, 9) for whole in (0.05, 0.001)}
    assert audit.shown == 0.0


@pytest.mark.long
def test_a_lower_bound_that_is_no_number_does_not_clear_a_claim(monkeypatch):
    monkeypatch.setattr(privacy, "of_repetitions", lambda *_: [Shown("noisy sums", math.nan)])
    audit = audit_claim(*config_and_plan(), experiments=FEW)
    assert audit.contradicted and all(finding.contradicts for finding in audit.findings)


@pytest.mark.parametrize("text", ["{", "[]", '{"findings": []}', '{"findings": [{"epsilon": "much"}]}'])
def test_a_damaged_audit_is_a_sentence(run, text):
    (run.path / "privacy_audit.json").write_text(text)
    with pytest.raises(UserError, match="damaged"):
        run.privacy_audit  # noqa: B018


def test_an_unfinished_run_is_refused(run):
    run.results.unlink()
    with pytest.raises(UserError, match="audit-early"):
        audit_run(run.path, 1, QUICK)


def test_figures_that_are_no_numbers_never_clear_a_claim():
    audit = claim()
    assert not audit.contradicted
    for moved in (math.nan, math.inf):
        spoilt = dataclasses.replace(audit, moved=moved)
        written = json.loads(json.dumps(publishing.as_json(spoilt), allow_nan=False))
        assert is_audit(written) and written["moved"] is None
        assert spoilt.contradicted and "contradicted: a sum was not finite" in verdict(written)
    facts = publishing.as_json(audit) | {"day": "2026-01-01"}
    assert is_audit(facts)
    for name in ("moved", "shown", "claim", "sensitivity", "delta"):
        assert not is_audit(facts | {name: math.nan})


@pytest.mark.parametrize("sums", [math.nan, math.inf])
def test_sums_that_are_not_finite_are_no_small_distance(monkeypatch, sums):
    """`max(0.0, nan)` is 0.0: such a mechanism would have passed as one that no record moves."""
    plan = SimpleNamespace(gradient_share=1, bounding=SimpleNamespace(method=SimpleNamespace(picks_engine=False)))
    case = SimpleNamespace(sums=lambda present, randomness: [torch.full((3,), sums)])
    under = SimpleNamespace(
        parts=SimpleNamespace(plan=plan), canaries=4, fillers=1, present=lambda rows: rows, with_model=lambda *_: case
    )
    assert most_moved(under) == math.inf


def test_a_sum_without_limit_is_reported_and_not_a_crash(tmp_path, dpfed, monkeypatch):
    spoilt = dataclasses.replace(claim(noise=math.nan), moved=math.inf)
    monkeypatch.setattr(publishing, "audit_claim", lambda *_, **__: spoilt)
    (tmp_path / "claim.toml").write_text(parse_config(tree()).dump())
    code, out, _ = dpfed("audit", "privacy", tmp_path / "claim.toml", "--out", tmp_path / "out")
    assert code == 3 and "without limit" in out and "a sum was not finite" in out
    assert json.loads((tmp_path / "out" / "privacy_audit.json").read_text())["contradicted"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="audit-folder"):
        publishing.audit_config(config_and_plan()[0], tmp_path / "file" / "audit")
