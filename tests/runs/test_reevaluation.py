"""Whatever is made of a run's private records after training is on its card before anybody sees it."""

import json
import shutil
from types import SimpleNamespace

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.export import export_model
from dpfed.audit.membership import audit_membership
from dpfed.config import parse_config
from dpfed.data.store.layout import HEADER
from dpfed.errors import UserError
from dpfed.evaluation.evaluator import Evaluator
from dpfed.privacy.randomness import Randomness
from dpfed.report.facts import LABELLED_BANK
from dpfed.runs import reevaluation
from dpfed.runs.lineage import runs_behind
from dpfed.runs.pretraining import pretrain, resume
from dpfed.runs.reevaluation import evaluate_run
from dpfed.training.coordinator import Coordinator
from tests.killed import killed
from tests.sparing import sparing


@pytest.fixture
def private(tiny, shapes, tmp_path):
    """The tiny run on records that are nobody's business; retrieval only, which reads no training label."""
    shutil.copytree(shapes.path, tmp_path / "store")
    header = json.loads((tmp_path / "store" / HEADER).read_text())
    header["public"] = False
    (tmp_path / "store" / HEADER).write_text(json.dumps(header))
    tiny["data"]["path"] = str(tmp_path / "store")
    tiny["privacy"]["accountant"] = "rdp"  # quick
    tiny["privacy"]["steps"], tiny["evaluation"]["every"] = 2, 0
    return tiny


def artifacts(run):
    return [run.card.read_text(), run.report.read_text()]


def marked(text):
    return text.count("exact functions of labelled training records")


@pytest.mark.long
def test_figures_of_training_labels_mark_card_and_report(private, tmp_path, monkeypatch):
    run = pretrain(parse_config(private), tmp_path / "run")
    evaluate_run(run.path)
    assert [marked(text) for text in artifacts(run)] == [0, 0]  # retrieval again: nothing to mark
    happened, evaluate, write = [], Evaluator.__call__, RunDirectory.write

    def evaluated(self, *arguments):
        happened.append("measured")
        return evaluate(self, *arguments)

    def written(self, file, text):
        happened.append(file.name)
        return write(self, file, text)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "__call__", evaluated)
        patch.setattr(RunDirectory, "write", written)
        evaluate_run(run.path, tasks=["knn"])
    # Wherever a crash comes: there may be a mark without its figures, but never figures without their mark.
    assert happened == ["disclosures.json", *["measured"] * 6, run.card.name, run.board.name, run.results.name]
    card, report = artifacts(run)
    assert marked(card) == 1 and marked(report) == 2  # above, and in its card
    assert marked(run.board.read_text()) == 1
    assert "3-NN accuracy" in report and f"**Mark:** {LABELLED_BANK.text}" in card
    names = {item["name"] for item in json.loads(run.results.read_text())["evaluations"]}
    assert {"knn3_accuracy[shape]", "image_to_text_R@10"} <= names
    evaluate_run(run.path, tasks=["retrieval"])  # what was seen stays seen
    assert [marked(text) for text in artifacts(run)] == [1, 2]


@pytest.mark.long
def test_an_unfinished_run_is_marked_when_it_ends(private, tmp_path):
    private["privacy"]["steps"], private["training"]["checkpoint_every"] = 4, 1
    with killed(Coordinator, "apply", 3, error=KeyboardInterrupt):
        pretrain(parse_config(private), tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    assert {figure.step for figure in evaluate_run(run.path, tasks=["linear"])} == {0, 2}
    assert not run.finished and not run.card.exists()
    resume(run.path)
    assert [marked(text) for text in artifacts(run)] == [1, 2]
    # The untrained model was measured by another process: the change has its error bar all the same.
    last = [item for item in json.loads(run.results.read_text())["evaluations"] if item["model"] == "trained"]
    assert last and all(item["change"][0] <= item["change"][1] for item in last)


@pytest.mark.long
def test_a_card_that_is_written_again_says_what_the_ledger_says(private, tmp_path):
    """Its plan and its marks, whatever config.toml says by now."""
    private["privacy"]["seed"] = 3
    run = pretrain(parse_config(private), tmp_path / "run")
    card, privacy = run.card.read_text(), json.loads(run.results.read_text())["privacy"]
    assert "The seed was fixed" in card and not privacy["guarantee"]
    config = run.path / "config.toml"
    for change in (("steps = 2\n", "steps = 3\n"), ("seed = 3\n", "")):
        assert change[0] in config.read_text()
        config.write_text(config.read_text().replace(*change))
    evaluate_run(run.path)
    assert run.card.read_text() == card and json.loads(run.results.read_text())["privacy"] == privacy


@pytest.mark.parametrize(
    ("files", "source", "said"),
    [
        ({}, "store", "`dpfed resume .*run` trains it"),
        ({"terms.json": "{}"}, "store", "`dpfed federation run FOLDER` .* trains it"),
        ({"terms.json": "{}", "simulation.json": "{}"}, "store", "`dpfed resume .*run` trains it"),
        ({}, "python:Photos", "running the same lines of Python again trains it"),
    ],
)
def test_a_run_without_a_checkpoint_is_told_what_resumes_it(tiny_config, tmp_path, files, source, said):
    data = tiny_config.data.model_copy(update={"source": source})
    config = tiny_config.model_copy(update={"data": data})
    run = RunDirectory.create(tmp_path / "run", config, Randomness.from_seed(0), files)
    with pytest.raises(UserError, match=rf"{said}.*run-checkpoint-missing"):
        evaluate_run(run.path)
    with pytest.raises(UserError, match=rf"{said}.*export-unfinished"):
        export_model(run.path, tmp_path / "model")


def test_a_command_that_resumes_a_run_quotes_its_folder(tiny_config, tmp_path):
    run = RunDirectory.create(tmp_path / "my run", tiny_config, Randomness.from_seed(0))
    with pytest.raises(UserError, match="`dpfed resume '.*/my run'` trains it.*run-checkpoint-missing"):
        evaluate_run(run.path)


@pytest.mark.parametrize("source", ["shapes", "procedural", "folder"])
@pytest.mark.parametrize("sites", ["none", "simulated", "institutions"])
def test_records_of_institutions_are_never_called_generated(tmp_path, source, sites):
    simulation = tmp_path / "simulation.json"
    if sites == "simulated":
        simulation.touch()
    run = SimpleNamespace(provenance={}, identity="0" * 32, simulation=simulation)
    config = parse_config({"data": {"source": source}})
    store, plan = SimpleNamespace(name="pictures", public=source != "folder"), SimpleNamespace(has_guarantee=False)
    parts = SimpleNamespace(config=config, store=store, plan=plan, terms=None if sites == "none" else "terms")
    (entry,) = runs_behind(run, parts, SimpleNamespace(marks={}))
    assert entry["generated"] == (source != "folder" and sites != "institutions")


def test_an_unreadable_key_is_not_called_missing(tiny_config, tmp_path):
    run = RunDirectory.create(tmp_path / "run", tiny_config, Randomness.from_seed(0))
    key = run.path / "secret.key"
    key.unlink()
    with pytest.raises(UserError, match="run-key-missing"):
        run.randomness()
    key.mkdir()  # root may read any file
    with pytest.raises(UserError, match=r"cannot be read \(.*run-key-unreadable"):
        run.randomness()


def test_nothing_that_was_disclosed_is_forgotten(tiny_config, tmp_path):
    run = RunDirectory.create(tmp_path / "run", tiny_config, Randomness.from_seed(0))
    for what in ("one", "other", "one"):
        run.disclose(what)
    assert run.disclosures == RunDirectory.open(run.path).disclosures == {"one", "other"}


def test_no_figure_is_shown_where_the_mark_cannot_be_written(private, tmp_path, monkeypatch):
    run = pretrain(parse_config(private), tmp_path / "run")

    def full(self, file, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write", full)
    with pytest.raises(UserError, match="run-evaluation-unlisted"):
        evaluate_run(run.path, tasks=["knn"])


@pytest.mark.slow
def test_results_and_card_are_written_by_one_process_at_a_time(tiny_config, tmp_path, monkeypatch):
    """Each adds to what it has read: the figures, or the mark, of one of two would be lost."""
    run = pretrain(tiny_config, tmp_path / "run")
    before = [run.results.read_bytes(), run.card.read_bytes()]
    monkeypatch.setattr(reevaluation, "_WAIT", 0.0)
    with RunDirectory.open(run.path).locked(), pytest.raises(UserError, match="in use"):
        evaluate_run(run.path, tasks=["knn"])
    assert [run.results.read_bytes(), run.card.read_bytes()] == before


@pytest.mark.long
def test_public_records_need_no_mark(tiny, tmp_path):
    tiny["privacy"]["steps"], tiny["evaluation"]["every"] = 2, 0
    run = pretrain(parse_config(tiny), tmp_path / "run")
    evaluate_run(run.path, tasks=["knn"])
    assert [marked(text) for text in artifacts(run)] == [0, 0] and not run.disclosures


@pytest.mark.long
@pytest.mark.parametrize("key", [None, "ab" * 32])
def test_private_records_fingerprint_is_published_only_keyed(private, tmp_path, key):
    file = tmp_path / "store" / HEADER
    header = json.loads(file.read_text())
    header["contents"] |= {"key": key} if key else {}
    file.write_text(json.dumps(header))
    run = pretrain(parse_config(private), tmp_path / "run")
    for text in (*artifacts(run), run.results.read_text()):
        assert (header["contents"]["fingerprint"] in text) == (key is not None)
    written = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    assert key is None or key.encode() not in written


@pytest.mark.long
@pytest.mark.parametrize("text", sparing(["", "[", "{}", '{"evaluations": []'], "{}"))
def test_damaged_results_are_refused_before_anything_is_measured(private, tmp_path, text, monkeypatch):
    run = pretrain(parse_config(private), tmp_path / "run")
    run.results.write_text(text)
    monkeypatch.setattr("dpfed.runs.reevaluation.build", lambda *_, **__: pytest.fail("something was measured"))
    with pytest.raises(UserError, match=r"results\.json.*\[results-"):
        evaluate_run(run.path)
    assert run.results.read_text() == text


@pytest.mark.slow
def test_an_audit_stays_on_the_card_of_a_later_evaluation(private, tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.audit.sides._LEAST", 50)
    run = pretrain(parse_config(private), tmp_path / "run")
    audit_membership(run.path, records=60)
    assert all(text.count("dpfed audit") == 1 and "do not publish it with the run" in text for text in artifacts(run))
    shutil.rmtree(run.audits)  # who has seen it has seen it
    evaluate_run(run.path, tasks=["knn"])
    assert all(text.count("dpfed audit") == 1 for text in artifacts(run))
    assert [marked(text) for text in artifacts(run)] == [1, 2]


def test_a_folder_that_is_not_a_run_is_not_called_a_damaged_one(tmp_path):
    """Nothing in it is to be removed."""
    (tmp_path / "notes.d" / "today.txt").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="is not a run: it has no config.toml"):
        RunDirectory.open(tmp_path)


def test_an_entry_of_a_run_that_cannot_be_read_is_named(tiny_config, tmp_path):
    run = RunDirectory.create(tmp_path / "run", tiny_config, Randomness.from_seed(0))
    (run.path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="run is damaged: .*link is a link that leads nowhere; restore or remove it"):
        RunDirectory.open(run.path)
