"""Runs, sweeps, audits and simulated federations under a lifetime budget of their records."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal

import pytest
import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.audit.membership import audit_membership
from dpfed.budgets.registry import BUDGET_LEDGER, budgets_of, registry
from dpfed.budgets.replicas import read
from dpfed.budgets.spending import set_budget
from dpfed.config import parse_config
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import resume, simulate
from dpfed.live.figures import figures
from dpfed.live.scan import Scan
from dpfed.privacy.ledger import Ledger
from dpfed.runs.budgeting import settle_run
from dpfed.runs.pretraining import pretrain
from dpfed.runs.reevaluation import evaluate_run
from dpfed.runs.sweep import sweep
from dpfed.training import steps as training_steps
from tests.patience import at_most


class Stopped(Exception):
    pass


@pytest.fixture
def store(shapes, tmp_path):
    return RecordStore.open(shutil.copytree(shapes.path, tmp_path / "store"))


@pytest.fixture
def config(tiny, store):
    """A run of six steps at epsilon 2, of which a budget of (4, 1e-5) holds three."""
    tiny["data"]["path"] = str(store.path)
    tiny["evaluation"] = {"split": "none"}
    tiny["privacy"] |= {"epsilon": 2.0, "delta": 1e-5}
    return tiny


@pytest.fixture
def budget(store):
    return set_budget(store, 6, 1e-5)


def budget_of(store):
    (entry,) = budgets_of(store)
    return entry.budget


@contextlib.contextmanager
def stopped_after(steps):
    real = training_steps.train

    def train(transport, coordinator, numbers, *rest):
        real(transport, coordinator, list(numbers)[:steps], *rest)
        raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(training_steps, "train", train)
        yield


@pytest.mark.long
def test_a_run_reserves_before_the_first_step_and_settles(config, store, budget, tmp_path, monkeypatch):
    seen = []
    charge = Ledger.charge
    monkeypatch.setattr(
        Ledger, "charge", lambda ledger, *releases: (seen.append(budget_of(store).spent), charge(ledger, *releases))
    )
    run = pretrain(parse_config(config), tmp_path / "run")
    plan = Ledger.open(run.ledger).plan
    (account,) = budget_of(store).accounts.values()
    assert seen and set(map(tuple, seen)) == {tuple(budget.filter.curve(plan.mechanism, 6))}
    assert (account.id, account.steps, account.settled) == (run.identity[:16], 6, True)
    assert "(6.0, 1.00e-5) for each record, over all runs" in run.card.read_text()


@pytest.mark.long
def test_a_run_that_does_not_fit_is_refused_unwritten(config, store, tmp_path):
    budget = set_budget(store, 4, 1e-5)
    config["privacy"]["steps"] = 2
    for number in range(5):
        try:
            pretrain(parse_config(config), tmp_path / f"run-{number}")
        except UserError as error:
            refusal = str(error)
            break
    assert number > 0 and "has no room" in refusal and "With this number of steps, epsilon" in refusal
    assert not (tmp_path / f"run-{number}").exists() and len(budget_of(store).accounts) == number
    config["privacy"]["epsilon"] = float(refusal.split("With this number of steps, epsilon ")[1].split()[0])
    pretrain(parse_config(config), tmp_path / "fitting")
    assert budget.filter.admits(budget_of(store).spent)


def _killed(config, folder, after):
    torch.set_num_threads(1)  # a forked process has none of the threads that torch would wait for
    training_steps.train = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    pretrain(config, folder)


@pytest.mark.long
def test_a_run_killed_before_step_one_keeps_its_reservation(config, store, budget, tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(parse_config(config), tmp_path / "run", 0))
    process.start()
    process.join(at_most(120))
    assert process.exitcode == -signal.SIGKILL
    (account,) = budget_of(store).accounts.values()
    assert (account.steps, account.settled) == (6, False) and Ledger.open(tmp_path / "run" / "ledger.jsonl").charged == 0
    resume(tmp_path / "run")
    assert budget_of(store).spent == account.cost


@pytest.mark.long
def test_a_run_given_up_gives_back_its_untaken_steps(config, store, budget, tmp_path):
    with stopped_after(4):
        pretrain(parse_config(config), tmp_path / "run")
    plan = Ledger.open(tmp_path / "run" / "ledger.jsonl").plan
    open_page, fresh = Scan(tmp_path), lambda: figures(Scan(tmp_path).one("run"))
    before = figures(open_page.one("run"))
    settle_run(tmp_path / "run")
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, 4)
    assert before != figures(open_page.one("run")) == fresh()  # no file of the run has changed, and what it shows has
    set_budget(store, 7, 1e-5)
    assert {one.key: one.value for one in fresh()}["epsilon_budget"] == 7 and figures(open_page.one("run")) == fresh()
    resume(tmp_path / "run")  # it may go on after all, where there is room
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, 6)


def test_a_run_whose_ledger_lost_lines_is_not_settled(config, store, budget, tmp_path):
    with stopped_after(4):
        pretrain(parse_config(config), tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(UserError, match="it ends after 1 charged step, and a checkpoint is of step 4.*run-ledger-short"):
        settle_run(tmp_path / "run")


def test_a_hidden_file_among_the_budgets_is_no_budget(tmp_path):
    registry().mkdir(parents=True, exist_ok=True)
    (registry() / "._macos.jsonl").write_bytes(b"\0\5\26\7")
    with pytest.raises(UserError, match="no run"):
        settle_run(tmp_path / "no run")


@pytest.mark.long
def test_a_copied_run_does_not_spend_a_reservation_twice(config, store, budget, tmp_path):
    with stopped_after(3):
        pretrain(parse_config(config), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.copytree(tmp_path / "run", tmp_path / "later")
    with pytest.raises(UserError, match="copy is a copy of .*run, which still exists"):
        resume(tmp_path / "copy")
    resume(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(UserError, match="older copy of a run that has settled 6"):
        resume(tmp_path / "later")


def test_a_book_that_lost_a_run_s_reservation_is_noticed(config, store, budget, tmp_path, own_registry):
    with stopped_after(3):
        pretrain(parse_config(config), tmp_path / "run")
    for path in (store.path / BUDGET_LEDGER, own_registry / f"{budget.head.id}.jsonl"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="the ledger has lost lines"):
        resume(tmp_path / "run")
    for path in (store.path / BUDGET_LEDGER, own_registry / f"{budget.head.id}.jsonl"):
        path.unlink()
    with pytest.raises(UserError, match=f"reservation in the budget {budget.head.id} .*budget-run-gone"):
        resume(tmp_path / "run")


def test_a_run_edited_into_a_larger_one_is_refused(config, store, budget, tmp_path):
    with stopped_after(0):
        pretrain(parse_config(config), tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    shutil.rmtree(run.checkpoints)
    run.ledger.unlink()
    settings = run.path / "config.toml"
    settings.write_text(settings.read_text().replace("steps = 6", "steps = 60"))
    with pytest.raises(UserError, match="has reserved another plan than it has now .6 steps"):
        resume(run.path)
    assert [account.steps for account in budget_of(store).accounts.values()] == [6]


@pytest.mark.long
def test_a_run_from_before_the_budget_is_written_at_its_end(config, store, tmp_path, monkeypatch):
    real, set_ = training_steps.train, []

    def train(*args):
        real(*args)
        set_.append(set_budget(store, 6, 1e-5))

    monkeypatch.setattr(training_steps, "train", train)
    run = pretrain(parse_config(config), tmp_path / "run")
    plan = Ledger.open(run.ledger).plan
    assert budget_of(store).spent == set_[0].filter.curve(plan.mechanism, 6) and not run.budget.exists()


@pytest.mark.long
def test_the_ledger_s_command_shows_what_the_books_say(config, store, budget, tmp_path, dpfed):
    with stopped_after(4):
        pretrain(parse_config(config), tmp_path / "run")
    settle_run(tmp_path / "run")
    code, said, _ = dpfed("privacy", "ledger", tmp_path / "run")
    lines = said.splitlines()
    place = lines.index(f"lifetime budget {budget.head.id}, (6.0, 1.00e-5) for each record")
    assert code == 0 and "reserved 6 steps" in lines[place + 1] and "settled 4 steps" in lines[place + 2]
    (told,) = json.loads(dpfed("privacy", "ledger", tmp_path / "run", "--json")[1])["reservations"]
    assert (told["budget"], [entry["steps"] for entry in told["entries"]]) == (budget.head.id, [6, 4])
    for path in (store.path / BUDGET_LEDGER, registry() / f"{budget.head.id}.jsonl"):
        path.unlink()
    assert "its ledger is gone" in dpfed("privacy", "ledger", tmp_path / "run")[1]


WITHOUT = {"bounding": {"method": "none", "group_size": 4}, "privacy": {"epsilon": None, "delta": None}}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes, said",
    [({"privacy": {"seed": 1}}, "privacy.seed is fixed"), (WITHOUT, "a run without privacy releases exact functions")],
)
def test_what_no_epsilon_covers_is_refused_unless_said_in_words(config, store, budget, tmp_path, changes, said):
    for section, value in changes.items():
        config[section] = {**config[section], **value} if isinstance(value, dict) else value
    with pytest.raises(UserError, match=f"which does not cover this release: .*{said}"):
        pretrain(parse_config(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config["privacy"]["not_covered"] = "a test of ours"
    pretrain(parse_config(config), tmp_path / "run")
    assert [entry.why.endswith("a test of ours") for entry in budget_of(store).uncovered] == [True]


@pytest.mark.long
def test_figures_of_training_labels_want_words(config, store, tmp_path):
    header = json.loads((store.path / "store.json").read_text())
    (store.path / "store.json").write_text(json.dumps({**header, "public": False}))
    private = RecordStore.open(store.path)
    set_budget(private, 6, 1e-5)
    run = pretrain(parse_config(config), tmp_path / "run")
    with pytest.raises(
        UserError, match="which does not cover this release: .*k-NN and linear probe are exact functions of training labels. Do"
    ):
        evaluate_run(run.path, "test", ["knn"])
    assert not run.disclosures
    with pytest.raises(UserError, match="run-figures-covered"):
        evaluate_run(run.path, "test", ["retrieval"], not_covered="a board's question")
    assert not run.disclosures and not budget_of(private).uncovered
    evaluate_run(run.path, "test", ["knn"], not_covered="a board's question")
    (entry,) = budget_of(private).uncovered
    assert entry.why.endswith("training labels: a board's question") and run.identity[:16] in entry.why


@pytest.mark.long
def test_an_audit_wants_words(config, store, budget, tmp_path):
    run = pretrain(parse_config(config), tmp_path / "run")
    with pytest.raises(UserError, match="release: .*the figures of an audit are exact functions of the records. Do without"):
        audit_membership(run.path, records=200)
    assert not run.audits.exists()


@pytest.mark.long
def test_words_that_nobody_asks_for_are_refused(config, tmp_path):
    run = pretrain(parse_config(config), tmp_path / "run")
    with pytest.raises(UserError, match="attack-no-budget"):
        audit_membership(run.path, records=200, not_covered="a board's question")
    with pytest.raises(UserError, match="run-figures-covered"):
        evaluate_run(run.path, "test", ["knn"], not_covered="a board's question")
    assert not run.audits.exists() and not run.disclosures


SWEEP = """
name = "two"
[[run]]
name = "one"
set = {"optimizer.learning_rate" = 1e-3}
[[run]]
name = "other"
set = {"optimizer.learning_rate" = 2e-3}
"""


@pytest.mark.long
def test_a_sweep_reserves_all_its_runs_before_the_first_one(config, store, tmp_path):
    """So its last run is not refused after the first ones are trained."""
    (tmp_path / "sweep.toml").write_text(SWEEP)
    set_budget(store, 3.5, 1e-5)
    with pytest.raises(UserError, match="the 2 runs take"):
        sweep(parse_config(config), tmp_path / "sweep.toml", tmp_path / "runs")
    assert not (tmp_path / "runs" / "two").exists() and not budget_of(store).accounts
    set_budget(store, 10, 1e-5)
    with stopped_after(3):
        sweep(parse_config(config), tmp_path / "sweep.toml", tmp_path / "runs")
    spent = budget_of(store).spent
    assert sorted(account.what for account in budget_of(store).accounts.values()) == ["run", "sweep"]
    sweep(parse_config(config), tmp_path / "sweep.toml", tmp_path / "runs")
    assert budget_of(store).spent == spent and all(account.settled for account in budget_of(store).accounts.values())


def test_a_sweep_given_up_gives_back_the_runs_not_begun(config, store, tmp_path):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    budget = set_budget(store, 10, 1e-5)
    with stopped_after(3):
        sweep(parse_config(config), tmp_path / "sweep.toml", tmp_path / "runs")
    settle_run(tmp_path / "runs" / "two")
    plan = Ledger.open(tmp_path / "runs" / "two" / "one" / "ledger.jsonl").plan
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, 6)


@pytest.mark.long
def test_a_simulated_federation_reserves_like_a_run(config, store, budget, tmp_path):
    run = simulate(parse_config(config), tmp_path / "run", Simulation(sites=2, skew=0.0))
    (account,) = budget_of(store).accounts.values()
    assert account.steps == Ledger.open(run.ledger).charged == 6 and account.settled


@pytest.mark.long
def test_the_commands_say_what_is_taken(config, store, tmp_path, dpfed):
    code, said, _ = dpfed("budget", "show", store.path)
    assert code == 2
    code, said, _ = dpfed("budget", "set", store.path, "--epsilon", 6, "--delta", 1e-5)
    assert code == 0 and "epsilon 6.0, delta 1e-05, for each record" in said and "taken  0 %" in said
    run = pretrain(parse_config(config), tmp_path / "run")
    _, said, _ = dpfed("budget", "show", store.path)
    assert "1 run, 6 steps" in said
    _, shown, _ = dpfed("budget", "show", store.path, "--json")
    (facts,) = json.loads(shown)
    assert facts["taken"] == facts["spent"] == pytest.approx(budget_of(store).filter.part(budget_of(store).spent))
    _, said, _ = dpfed("budget", "history", store.path)
    assert [line.split()[1] for line in said.splitlines()[1:]] == ["set:", "reserved", "settled"]
    code, said, _ = dpfed("budget", "settle", run.path)
    assert code == 0 and "is taken" in said
    code, _, error = dpfed("budget", "settle", tmp_path)
    assert code == 2 and "run-no-config" in error


@pytest.mark.long
def test_a_run_elsewhere_on_the_records_is_settled(config, store, tmp_path):
    """A run that was made before the budget was set counts when it is brought in."""
    run = pretrain(parse_config(config), tmp_path / "run")
    budget = set_budget(store, 6, 1e-5)
    settle_run(run.path)
    plan = Ledger.open(run.ledger).plan
    assert budget_of(store).spent == budget.filter.curve(plan.mechanism, 6) == read(store.path / BUDGET_LEDGER).spent
    assert plan.replace() == next(iter(budget_of(store).accounts.values())).plan
    assert RunDirectory(run.path).finished


@pytest.mark.long
def test_a_run_that_goes_on_reserves_nothing_more(config, store, budget, tmp_path):
    with stopped_after(3):
        pretrain(parse_config(config), tmp_path / "run")
    before = budget_of(store)
    assert [account.settled for account in before.accounts.values()] == [False]
    resume(tmp_path / "run")
    assert budget_of(store).spent == before.spent and len(budget_of(store).entries) == len(before.entries) + 1


def test_a_run_without_a_budget_is_no_store(tiny, dpfed, tmp_path):
    pretrain(parse_config(tiny), tmp_path / "run")
    for command in ("show", "history"):
        code, _, error = dpfed("budget", command, tmp_path / "run")
        assert code == 2 and "option-run-no-budget" in error
