"""The audit of a run: whom it looks at, what it writes and who may read that, and what it refuses."""

import json
import shutil
import stat
import sys

import numpy as np
import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.audit.membership import audit_membership
from dpfed.audit.sides import Sides
from dpfed.audit.signals import REFERENCES
from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.console.terminal import console
from dpfed.data.generated.shapes import write_shapes
from dpfed.errors import UserError
from dpfed.privacy.accounting import epsilon as accounted
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain


@pytest.fixture(scope="module")
def audit(audited):
    return audited, *audit_membership(audited.path, records=200)


@pytest.fixture
def run(audited, tmp_path) -> RunDirectory:
    """A copy of the run, to break."""
    shutil.copytree(audited.path, tmp_path / "run", ignore=shutil.ignore_patterns("audit"))
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def parts(audited):
    return build(audited.config())


def command(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(console, "width", 160)
    monkeypatch.setattr(sys, "argv", ["dpfed", "audit", "membership", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


@pytest.mark.long
def test_the_file_is_its_owners_and_the_card_says_so_once(audit, at_chance):
    run, path, _ = audit
    assert path == run.path / "audit" / "membership.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["membership.json"]
    audit_membership(run.path, records=200)
    card = run.card.read_text()
    assert card.count("dpfed audit") == 1 and card.startswith("# Privacy card of audited\n")


@pytest.mark.long
def test_the_file_holds_figures_and_nothing_about_any_record(audit, shapes):
    _, path, result = audit
    text = path.read_text()
    written = json.loads(text)
    assert (written["members"], written["non_members"]) == (result.members, result.non_members) == (100, 100)
    assert [(o["attack"], o["weights"]) for o in written["outcomes"]] == [(o.attack, o.weights) for o in result.outcomes]
    assert {o.weights for o in result.outcomes} == {"trained", "untrained"} and len(result.outcomes) == 6
    assert not any(id in text for id in shapes.ids(np.arange(len(shapes))))
    assert not any(isinstance(value, list) and len(value) > 10 for value in written.values())


def test_the_promise_is_the_run_s(audit):
    run, _, result = audit
    plan = build(run.config()).plan
    assert result.promise.delta == plan.promise.delta
    spent = accounted(plan.mechanism, 2, plan.promise.delta)
    assert result.promise.epsilon == pytest.approx(spent)
    assert result.outcomes[0].points[0].most == pytest.approx(min(1, np.exp(spent) * 0.01 + plan.promise.delta), rel=1e-6)


def test_sides_keep_apart(parts):
    sides = Sides.draw(parts, None, 0, Randomness.from_seed(3))
    train = set(parts.store.split("train"))
    members, unseen = map(set, sides.indices)
    assert members <= train and not unseen & train and set(sides.references) <= train - members
    assert (len(members), len(unseen)) == (600 - REFERENCES, 200)
    halves = [int((side & half).sum()) for side in (sides.member, ~sides.member) for half in (sides.known, ~sides.known)]
    assert halves == [285, 284, 100, 100]
    other = Sides.draw(parts, None, 200, Randomness.from_seed(4))
    assert set(other.indices[0]) < train and set(other.indices[0]) != set(sorted(train)[:200])  # drawn, not the first


def test_a_members_unit_or_id_makes_no_non_member(parts, monkeypatch):
    store = parts.store
    held_out, train = np.flatnonzero(~np.isin(np.arange(len(store)), store.split("train"))), store.split("train")
    store.units = store.keys.copy()
    store.units[held_out[0]] = store.units[train[0]]
    with pytest.raises(UserError, match="found 199: .*--non-members STORE.*attack-few"):
        Sides.draw(parts, None, 0, Randomness.fresh())
    monkeypatch.setattr("dpfed.audit.sides._LEAST", 199)
    assert held_out[0] not in Sides.draw(parts, None, 0, Randomness.fresh()).indices[1]
    monkeypatch.setattr("dpfed.audit.sides._LEAST", 201)
    with pytest.raises(UserError, match=r"found 200: .*\[attack-few\]"):  # training records of the run are no non-members
        Sides.draw(parts, store.path, 0, Randomness.fresh())


def test_each_number_of_records_that_is_too_small_has_its_own_advice(parts, monkeypatch):
    with pytest.raises(UserError, match=r"--records -5: expected 0 \(all\) or at least 200.*\[attack-records"):
        Sides.draw(parts, None, -5, Randomness.from_seed(0))
    with pytest.raises(UserError, match=r"--records 199: expected 0 \(all\) or at least 200.*\[attack-records"):
        Sides.draw(parts, None, 199, Randomness.fresh())
    least = (train := len(parts.store.split("train"))) + 1
    monkeypatch.setattr("dpfed.audit.sides._LEAST", least - REFERENCES)
    with pytest.raises(UserError, match=f"at least {least} training records, and the run has {train}: .*attack-few-members"):
        Sides.draw(parts, None, 0, Randomness.fresh())


def test_figures_of_private_records_are_not_printed(run, monkeypatch, capsys, at_chance):
    monkeypatch.setattr(Sides, "public", False)
    monkeypatch.setattr("dpfed.audit.sides._LEAST", 30)
    code, out, _ = command(monkeypatch, capsys, run.path, "--records", 40)
    assert code == 0 and "--show" in out and "membership.json" in "".join(out.split())
    assert "EncoderMI" not in out and "%" not in out
    code, out, _ = command(monkeypatch, capsys, run.path, "--records", 40, "--json")
    assert code == 0 and json.loads(out).keys() == {"file"}


@pytest.mark.slow
def test_figures_are_printed_on_request_or_for_public_records(run, monkeypatch, capsys, at_chance):
    code, out, _ = command(monkeypatch, capsys, run.path, "--records", 200)
    assert code == 0 and "EncoderMI" in out and "most that the promise allows" in out
    monkeypatch.setattr(Sides, "public", False)
    code, out, _ = command(monkeypatch, capsys, run.path, "--records", 200, "--show", "--json")
    assert code == 0 and json.loads(out)["members"] == 100


def test_a_run_without_a_guarantee_has_no_bound(run, at_chance, monkeypatch):
    results = json.loads(run.results.read_text())
    results["privacy"]["guarantee"] = False
    run.results.write_text(json.dumps(results))
    monkeypatch.setattr("dpfed.audit.sides._LEAST", 30)
    _, audit = audit_membership(run.path, records=40)
    assert audit.promise.epsilon is None and all(point.most is None for o in audit.outcomes for point in o.points)


def _unfinished(run):
    run.results.unlink()
    return [], "attack-unfinished"


def _federated(run):
    run.terms.write_text("{}")
    return [], "attack-sites"


def _no_checkpoints(run):
    shutil.rmtree(run.checkpoints)
    return [], "attack-weights"


def _records_are_gone(run):
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('/shapes"', '/moved"'))
    return [], "moved"


@pytest.mark.parametrize(
    "damage",
    [
        _unfinished,
        _federated,
        _no_checkpoints,
        lambda run: (["--records", 50], r"expected 0 (all) or at least 200"),
        lambda run: (["--non-members", run.path / "nothing"], "nothing"),
        _records_are_gone,
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_sentence(run, damage, monkeypatch, capsys):
    arguments, expected = damage(run)
    code, _, err = command(monkeypatch, capsys, run.path, *arguments)
    assert code == 2 and err.startswith("error: ") and expected in err and "Traceback" not in err
    assert not (run.path / "audit").exists()


@pytest.mark.slow
def test_an_overfitted_model_is_caught_and_a_private_one_not(tmp_path):
    """The whole way, with a real model: 400 records learnt by heart."""
    write_shapes(tmp_path / "shapes", train=431, validation=0, test=400)
    for method, promise in {"none": {}, "group": {"epsilon": 2.0}}.items():
        tree = {
            "data": {"source": "store", "path": str(tmp_path / "shapes"), "size": 16},
            "model": {"kind": "image-text", "image": "cnn", "width": 16},
            "bounding": {"method": method, "group_size": 16, "engine": "loop"},
            "privacy": {"batch": 128, "steps": 300, **promise},
            "optimizer": {"name": "adam", "learning_rate": 2e-3},
            "training": {"device": "cpu"},
            "evaluation": {"tasks": ["retrieval"]},
        }
        _, audit = audit_membership(pretrain(parse_config(tree), tmp_path / method).path)
        assert not audit.differ_untrained
        trained = [outcome for outcome in audit.outcomes if outcome.weights == "trained"]
        assert any(outcome.auc.low > 0.55 for outcome in trained) == (method == "none")
        assert all(point.most is None or point.tpr.low <= point.most for outcome in trained for point in outcome.points)
