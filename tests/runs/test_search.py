"""Secret searches: what is published does not tell how many runs there were, and an interruption draws nothing again."""

import json
import os
import shutil
import stat
import threading

import pytest

from dpfed.budgets.book import Book
from dpfed.budgets.shelf import budgets_of
from dpfed.budgets.spending import set_budget
from dpfed.config import parse_config
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.evaluation.suite import figures_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.promise import round_up
from dpfed.privacy.randomness import Randomness
from dpfed.privacy.selection import Selection
from dpfed.report.card import table_rows
from dpfed.runs import directory, running
from dpfed.runs import search as searching
from dpfed.runs.budgeting import settle_run
from dpfed.runs.pretraining import pretrain
from dpfed.runs.reevaluation import evaluate_run
from dpfed.runs.resuming import resume
from dpfed.runs.search import search
from dpfed.runs.search_folder import SearchFolder
from dpfed.runs.verification import verify
from dpfed.runs.view import RunView, results_in

SCORE = "image_to_text_R@10"
LIST = """
name = "rates"
[[run]]
name = "low"
set = { "optimizer.learning_rate" = 1e-3 }
[[run]]
name = "high"
set = { "optimizer.learning_rate" = 1e-2 }
"""


class Stopped(Exception):
    pass


class Heard:
    """All that a watcher is told."""

    def __init__(self):
        self.told = []

    def stage(self, name, total):
        self.told.append((name, total))
        return lambda done: self.told.append((name, done))

    def note(self, text):
        self.told.append(text)

    def evaluated(self, figures):
        self.told.append(figures)


@pytest.fixture
def config(tiny):
    """A run of three steps; as many as ten of them, shown, cost more than a search."""
    tiny["privacy"] |= {"epsilon": None, "noise_multiplier": 1.5, "steps": 3, "delta": 1e-5, "accountant": "rdp"}
    tiny["evaluation"] = {"tasks": ["retrieval"], "records": 20}
    tiny["model"] |= {"width": 4, "text_width": 8}
    return tiny


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rates.toml"
    path.write_text(LIST)
    return path


@pytest.fixture
def searched(config, file, tmp_path, monkeypatch):
    """Searches with a known key: as many runs as are wanted, of which the second is made the best."""

    def make(folder, runs, watcher=None, key=b"\7" * 32, best=1):
        monkeypatch.setattr(Randomness, "fresh", classmethod(lambda cls: cls(key)))
        monkeypatch.setattr(directory.secrets, "token_hex", lambda count: "ab" * count)  # the run's id, random by design
        if runs is not None:
            monkeypatch.setattr(Selection, "draw", lambda own, randomness: runs)
        made = []

        def score(run, kept):
            places = [kept.run(number) for number in range(50)]
            made.append(places.index(run.path))
            return float(places.index(run.path) == best)

        monkeypatch.setattr(searching, "_score", score)
        return search(parse_config(config), file, tmp_path / folder, SCORE, 10, watcher=watcher), made

    return make


def contents(folder):
    """All files; of checkpoints, whose header safetensors writes in any order, what they hold."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    assert not [name for name, content in found.items() if b"/.search" in content]
    return {name: _parsed(content) if name.startswith("checkpoints/") else content for name, content in found.items()}


def _parsed(content):
    end = 8 + int.from_bytes(content[:8], "little")
    return json.dumps(json.loads(content[8:end]), sort_keys=True).encode() + content[end:]


def times(folder):
    return {(path.relative_to(folder).as_posix(), path.stat().st_mtime) for path in (folder, *folder.rglob("*"))}


def stopped_after(monkeypatch, steps):
    """The steps that this process may take, in all runs together."""
    real, left = running.train, [steps]

    def train(transport, coordinator, numbers, observers):
        numbers = list(numbers)
        real(transport, coordinator, numbers[: left[0]], observers)
        left[0] -= len(numbers)
        if left[0] < 0:
            raise Stopped

    monkeypatch.setattr(running, "train", train)


def test_what_is_published_does_not_tell_how_many_runs_there_were(searched, tmp_path, monkeypatch):
    few, many, seen, real = Heard(), Heard(), set(), searching._trained

    def trained(kept, number, configs):  # nor does the time of the hidden folder, which others can ask for
        seen.add((tmp_path / "many" / "rates" / ".search").stat().st_mtime_ns)
        return real(kept, number, configs)

    one, _ = searched("few", 1, few, best=0)
    monkeypatch.setattr(searching, "_trained", trained)
    two, made = searched("many", 2, many, best=0)
    assert max(made) == 1 and len(seen) == 1
    place = str(tmp_path)
    assert [str(told).replace(place, "") for told in few.told] == [str(told).replace(place, "") for told in many.told]
    first, second = contents(one.path), contents(two.path)
    assert first.keys() == second.keys()
    assert not {name for name in first if first[name].replace(b"few", b"many") != second[name].replace(b"few", b"many")}
    assert times(one.path) == times(two.path) and len({moment for _, moment in times(one.path)}) == 1
    assert next(iter(times(one.path)))[1] % 86_400 == 0
    for folder in (one.path.parent, two.path.parent):
        assert [entry.name for entry in folder.iterdir()] == ["best"]


def test_the_published_run_states_the_epsilon_of_the_search(searched, dpfed):
    heard = Heard()
    run, _ = searched("runs", 1, heard, best=0)
    ledger = Ledger.open(run.ledger)
    selection = ledger.selection
    assert selection.epsilon > ledger.plan.epsilon() and ledger.epsilon == selection.epsilon
    rows, results = table_rows(run.card.read_text()), results_in(run.results)
    assert results["privacy"]["epsilon"] == selection.epsilon and results["privacy"]["accountant"] == "rdp"
    assert rows["Epsilon spent"].endswith("(rdp)") and "Cross-check" not in rows
    assert "geometric distribution with mean 10" in rows["Selection"] and "(low, high)" in rows["Selection"]
    assert {line["epsilon"] for line in run.metric_lines() if "epsilon" in line} == {selection.epsilon}
    assert "knows how many runs the search had" in run.card.read_text()
    checks = verify(run.card, run.path)
    assert not [check.wrong for check in checks if check.wrong] and any("secret number of runs" in one.what for one in checks)
    assert "secret.key" not in contents(run.path)
    (trained,) = json.loads((run.model / "model.json").read_text())["trained"]
    assert trained["epsilon"] == selection.epsilon  # who starts from the weights is told of the search
    told = " ".join(str(one) for one in heard.told)  # before the first step
    for value in (selection.epsilon, selection.epsilon_of_one, selection.epsilon_of_all):
        assert f"epsilon {round_up(value)}" in told
    assert selection.epsilon < selection.epsilon_of_all and "not protected at all" in told
    before = contents(run.path)
    (run.path.parent / ".search" / "inside").mkdir(parents=True)  # as if a crash had come before it was removed
    again, made = searched("runs", 1, best=0)
    assert not made and contents(again.path) == before and not (run.path.parent / ".search").exists()
    evaluate_run(run.path)
    assert RunView.read(run.path).epsilon == selection.epsilon
    assert resume(run.path).path == run.path
    code, out, _ = dpfed("privacy", "ledger", run.path)
    assert code == 0 and f"epsilon {round_up(selection.epsilon)}" in out and "interrupted" not in out
    facts = json.loads((run.path / "search.json").read_text())
    facts["selection"]["mean"] = 2.0
    (run.path / "search.json").write_text(json.dumps(facts))
    assert any("they say otherwise" in check.wrong for check in verify(run.card, run.path))
    (run.path / "search.json").unlink()
    assert any("they say otherwise" in check.wrong for check in verify(run.card, run.path))


def test_the_best_run_by_the_figure_is_published(config, file, tmp_path, monkeypatch):
    figures, real = [], searching._trained

    def trained(kept, number, configs):
        run = real(kept, number, configs)
        figures.append((searching._score(run, kept), run.config().optimizer.learning_rate, run.ledger.read_bytes()))
        return run

    monkeypatch.setattr(searching, "_trained", trained)
    monkeypatch.setattr(Selection, "draw", lambda own, randomness: 2)
    run = search(parse_config(config), file, tmp_path / "runs", SCORE)
    best = max(figures, key=lambda one: one[0])
    assert len({ledger for *_, ledger in figures}) == 2  # no two runs have the same draws
    assert run.config().optimizer.learning_rate == best[1] and run.ledger.read_bytes() == best[2]
    found = {item["name"]: item["value"] for item in RunView.read(run.path).evaluations if item["model"] == "trained"}
    assert found[SCORE] == best[0]


def test_a_search_goes_on_with_what_was_drawn_and_leaves_no_trace_of_it(searched, tmp_path, monkeypatch):
    """K is that of the key, also after an interruption: a new draw would be another number."""
    key = next(key for key in (bytes([n]) * 32 for n in range(99)) if _drawn(key) == 2)
    whole, made = searched("runs", None, key=key)
    expected = contents(whole.path)
    (tmp_path / "runs" / "rates").rename(tmp_path / "kept")
    with monkeypatch.context() as patch:
        stopped_after(patch, 4)  # within the second run
        with pytest.raises(Stopped):
            searched("runs", None, key=key)
    key_now = bytes([10]) * 32  # what a new draw would use
    assert stat.S_IMODE((tmp_path / "runs" / "rates" / ".search").stat().st_mode) == 0o700
    assert _drawn(key_now) > 2
    run, again = searched("runs", None, key=key_now)
    assert max(again) == max(made) == 1
    assert contents(run.path) == expected


def _drawn(key):
    plan = PrivacyPlan(600, 60, group_size=4, clip_norm=1.0, steps=3, noise_multiplier=1.5, delta=1e-5, accountant="rdp")
    return Selection("geometric", 10, (plan,)).draw(Randomness(key))


def test_a_budget_keeps_the_whole_cost_of_a_search_and_gives_nothing_back(config, file, shapes, tmp_path, monkeypatch):
    store = RecordStore.open(shutil.copytree(shapes.path, tmp_path / "store"))
    config["data"]["path"] = str(store.path)
    budget = set_budget(store, 20, 1e-5)
    seen, charge = [], Ledger.charge
    monkeypatch.setattr(Ledger, "charge", lambda own, one: (seen.append(_book(store).spent), charge(own, one)))
    monkeypatch.setattr(Selection, "draw", lambda own, randomness: 2)
    with monkeypatch.context() as patch:
        stopped_after(patch, 4)
        with pytest.raises(Stopped):
            search(parse_config(config), file, tmp_path / "runs", SCORE)
    with pytest.raises(UserError, match="nothing is given back"):
        settle_run(tmp_path / "runs" / "rates")
    with monkeypatch.context() as patch:  # it has taken steps, so a book that knows nothing of it has lost lines
        patch.setattr(Book, "accounts", {})
        with pytest.raises(UserError, match=r"was charged [1-9]\d* steps, and the book knows nothing of it"):
            search(parse_config(config), file, tmp_path / "runs", SCORE)
    run = search(parse_config(config), file, tmp_path / "runs", SCORE)
    selection = Ledger.open(run.ledger).selection
    cost = selection.curve(budget.filter.orders)
    assert set(seen) == {cost} and _book(store).spent == cost  # neither more for two runs, nor less
    (account,) = _book(store).accounts.values()
    assert (account.what, account.settled, account.selection) == ("search", True, selection)
    assert "(20.0, 1.00e-5) for each record" in run.card.read_text()
    settle_run(run.path)
    assert len(_book(store).accounts) == 1 and _book(store).spent == cost
    config["privacy"] |= {"noise_multiplier": 0.5, "steps": 12}
    with pytest.raises(UserError, match="has no room: .* the best of 10 runs on average takes"):
        search(parse_config(config), file, tmp_path / "other", SCORE)
    assert not (tmp_path / "other").exists()


def _book(store):
    (found,) = budgets_of(store)
    return found.book


def test_no_run_at_all_publishes_nothing(config, file, tmp_path, monkeypatch):
    monkeypatch.setattr(Selection, "draw", lambda own, randomness: 0)
    config["privacy"]["noise_multiplier"] = 6.0
    assert search(parse_config(config), file, tmp_path / "runs", SCORE, 10, "poisson") is None
    assert not list((tmp_path / "runs" / "rates").iterdir())


def test_two_processes_do_not_search_in_one_folder(searched, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopped_after(patch, 0)
        with pytest.raises(Stopped):
            searched("runs", 2)
    refused = []

    def other():
        try:
            searched("runs", 2)
        except UserError as error:
            refused.append(str(error))

    with SearchFolder(tmp_path / "runs" / "rates").locked():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
    assert "in use by another process that searches" in refused[0]


def test_a_run_of_a_search_is_not_taken_up_alone(searched, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopped_after(patch, 2)
        with pytest.raises(Stopped):
            searched("runs", 2)
    kept = SearchFolder(tmp_path / "runs" / "rates")
    with pytest.raises(UserError, match="belongs to a secret search"):
        resume(kept.run(0))
    assert stat.S_IMODE(os.stat(kept.run(0) / "secret.key").st_mode) == 0o600


def test_a_folder_with_another_search_or_run_is_refused(searched, config, file, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopped_after(patch, 0)
        with pytest.raises(Stopped):
            searched("runs", 2)
    with pytest.raises(UserError, match="holds another search, which is not finished"):
        search(parse_config(config), file, tmp_path / "runs", SCORE, 20)
    searched("runs", 1, best=0)
    with pytest.raises(UserError, match="holds another run, or the best of another search"):
        search(parse_config(config), file, tmp_path / "runs", SCORE, 20)


@pytest.mark.parametrize(
    ("section", "changes", "complaint"),
    [
        ("privacy", {"seed": 1}, "privacy.seed is fixed, so anybody can compute how many runs"),
        ("bounding", {"method": "none"}, "a run without privacy has no epsilon"),
        ("bounding", {"method": "dpcl"}, "bounding.method = 'dpcl' does not hold, so no search"),
        ("", {"diagnostics": "raw"}, "writes exact figures of records, which a search cannot count"),
        ("evaluation", {"split": "none"}, "measures nothing, and a search needs a figure"),
    ],
)
def test_runs_that_no_search_can_count_are_refused(config, file, tmp_path, section, changes, complaint):
    (config[section] if section else config).update(changes)
    if changes.get("split"):
        config["evaluation"] = changes
    if changes.get("method"):
        config["bounding"] = changes
        config["privacy"] = {"batch": 60, "steps": 3, **({} if changes["method"] == "none" else {"noise_multiplier": 1.5})}
    with pytest.raises(UserError, match=complaint):
        search(parse_config(config), file, tmp_path / "runs", SCORE)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (LIST[: LIST.rindex("[[run]]")], "has one run, and a search needs at least two settings"),
        (LIST + '"evaluation.records" = 50'.join(["[[run]]\nname = 'x'\nset = { ", " }"]), "changes keys of .evaluation."),
        (LIST + '"privacy.delta" = 1e-6'.join(["[[run]]\nname = 'x'\nset = { ", " }"]), "privacy.delta must be the same"),
    ],
)
def test_lists_that_cannot_be_searched_are_refused(config, file, tmp_path, text, complaint):
    file.write_text(text)
    with pytest.raises(UserError, match=complaint):
        search(parse_config(config), file, tmp_path / "runs", SCORE)


def test_a_figure_that_is_not_measured_or_reads_training_labels_does_not_choose(config, file, tmp_path):
    with pytest.raises(UserError, match="measures no figure 'image_to_text_R@11' that could choose; did you mean"):
        search(parse_config(config), file, tmp_path / "runs", "image_to_text_R@11")
    config["evaluation"] = {"tasks": ["retrieval", "knn"], "records": 60}
    config["data"]["path"] = str(shutil.copytree(config["data"]["path"], tmp_path / "store"))
    header = json.loads((tmp_path / "store" / "store.json").read_text())
    (tmp_path / "store" / "store.json").write_text(json.dumps({**header, "public": False}))
    label = next(name for name in figures_of(*_opened(config)) if name.startswith("knn3"))
    with pytest.raises(UserError, match="exact function of private training labels"):
        search(parse_config(config), file, tmp_path / "runs", label)


def _opened(config):
    return RecordStore.open(config["data"]["path"]), parse_config(config)


def test_the_named_figures_are_those_that_are_measured(config, tmp_path):
    config["evaluation"] = {"tasks": ["retrieval", "knn", "linear", "zero_shot"], "records": 60}
    run = pretrain(parse_config(config), tmp_path / "run")
    assert set(figures_of(*_opened(config))) == {item["name"] for item in RunView.read(run.path).evaluations}


def test_showing_all_is_advised_where_it_costs_less(config, file, tmp_path):
    with pytest.raises(UserError, match=r"epsilon [\d.]+, and 2 such runs cost [\d.]+ together even if all"):
        search(parse_config(config), file, tmp_path / "runs", SCORE, 1.6)
    assert not (tmp_path / "runs").exists()
