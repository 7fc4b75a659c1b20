"""A card, a ledger, a plan and a model that belong together, and every way in which one of them may not."""

import json
import shutil

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.verification import ledger_of, verify
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.runs.pretraining import pretrain
from dpfed.runs.reevaluation import evaluate_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory, shapes):
    """Two finished runs of the same configuration."""
    folder = tmp_path_factory.mktemp("verification")
    tree = {
        "name": "tiny",
        "data": {"source": "store", "path": str(shapes.path), "size": 16},
        "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
        "bounding": {"group_size": 4, "engine": "loop"},
        "privacy": {"epsilon": 8.0, "accountant": "rdp", "batch": 60, "steps": 3},
        "evaluation": {"tasks": ["retrieval"], "records": 50},
    }
    return [pretrain(parse_config(tree), folder / name) for name in ("one", "other")]


@pytest.fixture
def run(runs, tmp_path):
    return RunDirectory(shutil.copytree(runs[0].path, tmp_path / "run"))


def wrong(card, run):
    return [check.what for check in verify(card, run.path) if check.wrong]


@pytest.mark.long
def test_a_finished_run_and_its_card_belong_together(run, tmp_path):
    assert wrong(run.card, run) == []
    assert wrong(shutil.copy(run.card, tmp_path / "copy.md"), run) == []
    artifacts = Ledger.open(run.ledger).artifacts
    assert artifacts and Ledger.open(run.ledger).head in run.card.read_text() and artifacts.model in run.card.read_text()
    assert Ledger.open(run.ledger).head in run.report.read_text()


@pytest.mark.long
def test_a_card_that_is_written_again_is_the_one_that_counts(run, tmp_path):
    old = shutil.copy(run.card, tmp_path / "old.md")
    evaluate_run(run.path)
    assert wrong(run.card, run) == []
    assert run.card.read_text() == old.read_text() or "the card is the one that the ledger names" in wrong(old, run)


def test_every_byte_of_the_card_counts(run, tmp_path):
    text = run.card.read_bytes()
    for place in range(0, len(text), 97):
        changed = tmp_path / "changed.md"
        changed.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        try:
            assert "the card is the one that the ledger names" in wrong(changed, run), place
        except UserError as error:
            assert error.code == "run-card-unreadable"


def test_card_model_and_ledger_of_another_run_are_noticed(run, runs):
    other = runs[1]
    assert len(wrong(other.card, run)) == 3  # the card, its hash of the ledger, its model
    shutil.rmtree(run.model)
    shutil.copytree(other.model, run.model)
    assert wrong(run.card, run) == ["the model has the weights that card and ledger name"]
    shutil.copy(other.ledger, run.ledger)
    assert "the card is the one that the ledger names" in wrong(run.card, run)


def test_a_lost_or_changed_ledger_line_is_refused_by_number(run):
    lines = run.ledger.read_text().splitlines(keepends=True)
    for number in range(1, len(lines) - 1):
        run.ledger.write_text("".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(UserError, match=f"damaged at line {number + 1}"):
            verify(run.card, run.path)
        entry = json.loads(lines[number])
        entry["step"] = 77
        run.ledger.write_text("".join([*lines[:number], json.dumps(entry) + "\n", *lines[number + 1 :]]))
        with pytest.raises(UserError, match=f"damaged at line {number + 1}"):
            verify(run.card, run.path)
    for cut in range(1, len(lines)):
        run.ledger.write_text("".join(lines[:-cut]))
        short = r"it ends after \d charged steps?, and results.json says 3"
        gone = "line with the card's hash is missing" if cut == 1 else short
        with pytest.raises(UserError, match=f"{gone}.*run-ledger-short"):
            verify(run.card, run.path)
    run.ledger.write_text("".join(lines) + '{"torn')
    assert wrong(run.card, run) == []


def test_the_file_of_figures_betrays_what_every_other_file_lost(run):
    lines = run.ledger.read_text().splitlines(keepends=True)
    shutil.rmtree(run.checkpoints)
    run.results.unlink()
    run.ledger.write_text("".join(lines[:-2]))
    with pytest.raises(
        UserError, match=r"ends after 2 charged steps, and metrics.jsonl has a line of step 3.*run-ledger-short"
    ):
        ledger_of(run)


def test_a_ledger_that_lost_lines_writes_no_card_shows_nothing(run, dpfed):
    """Otherwise `dpfed evaluate` would write a card with a smaller epsilon than was spent."""
    lines, card = run.ledger.read_text().splitlines(keepends=True), run.card.read_bytes()
    run.ledger.write_text("".join(lines[:-2]))
    with pytest.raises(UserError, match="run-ledger-short"):
        evaluate_run(run.path)
    for words in (("privacy", "ledger", run.path), ("privacy", "ledger", run.path, "--json"), ("budget", "settle", run.path)):
        code, out, error = dpfed(*words)
        assert code == 2 and "run-ledger-short" in error and "epsilon" not in out
    assert run.card.read_bytes() == card


def test_papers_that_say_less_than_was_spent_are_noticed(run):
    results = json.loads(run.results.read_text())
    results["privacy"]["epsilon"] -= 0.5
    run.results.write_text(json.dumps(results))
    assert wrong(run.card, run) == ["results.json says what was spent"]


def test_another_configuration_is_noticed(run):
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("clip_norm = 1.0", "clip_norm = 2.0"))
    assert wrong(run.card, run) == ["the plan of the ledger is that of config.toml"]


def test_the_commands(run, dpfed, tmp_path):
    code, out, _ = dpfed("privacy", "verify", run.card, run.path)
    assert code == 0 and out.count("yes  ") == 6
    (tmp_path / "other.md").write_text(run.card.read_text().replace("record", "rec0rd"))
    code, out, error = dpfed("privacy", "verify", tmp_path / "other.md", run.path)
    assert code == 2 and "NO   the card is the one" in out and "1 of 6 checks fail. [run-card-differs]" in error
    code, out, _ = dpfed("privacy", "ledger", run.path, "--json")
    facts, ledger = json.loads(out), Ledger.open(run.ledger)
    assert facts["charged"] == ledger.charged and facts["hash"] == ledger.head
    assert facts["epsilon"][-1] == [ledger.charged, pytest.approx(ledger.epsilon)]
    code, out, _ = dpfed("privacy", "ledger", run.path)
    assert code == 0 and ledger.head in out and "planned steps are charged" in out
    assert dpfed("privacy", "verify", tmp_path / "gone.md", run.path)[0] == 2
    assert dpfed("privacy", "ledger", tmp_path)[0] == 2


@pytest.mark.long
def test_the_figure_of_an_unsound_method_is_a_claim_only(tiny, tmp_path, dpfed):
    """The accountant's figure is a claim, by that name; an untouched run verifies."""
    tiny["bounding"], tiny["privacy"] = {"method": "dpcl"}, {"epsilon": 8.0, "batch": 60, "steps": 2}
    run = pretrain(parse_config(tiny), tmp_path / "run")
    assert wrong(run.no_card, run) == []
    privacy = json.loads(run.results.read_text())["privacy"]
    assert privacy["epsilon"] is None and not privacy["guarantee"]
    assert privacy["claimed_epsilon"] == Ledger.open(run.ledger).epsilon <= 8
    _, out, _ = dpfed("privacy", "ledger", run.path)
    assert "no guarantee" in out and out.count("claimed epsilon") == out.count("epsilon") == 2
    facts = json.loads(dpfed("privacy", "ledger", run.path, "--json")[1])
    assert facts["epsilon"] == [[1, None], [2, None]] and facts["claimed_epsilon"][-1] == [2, privacy["claimed_epsilon"]]
    assert run.epsilon is None
    run.results.unlink()  # as before the end of the run
    assert run.epsilon is None


def test_a_config_that_allows_no_plan_is_not_the_ledgers(run):
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("batch = 60", "batch = 1000000"))
    [check] = [check for check in verify(run.card, run.path) if check.wrong]
    assert "plan of the ledger" in check.what and "plan-impossible" in check.wrong
