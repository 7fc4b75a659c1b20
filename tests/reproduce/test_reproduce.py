"""Experiments: what is trained and how often, what is refused, and that every output says what it is."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from pathlib import Path

import pytest
import tomli_w
import typer
from typer.testing import CliRunner

from dpfed.errors import UserError
from dpfed.reproduce import command
from dpfed.reproduce.comparison import RETRIEVAL, DataSet, Experiment, Variant
from dpfed.reproduce.experiments import EXPERIMENTS, experiment
from dpfed.reproduce.outcome import reproduce
from dpfed.reproduce.runs import Request, plan_runs
from dpfed.training.coordinator import Coordinator
from tests.killed import Killed

BASE = Variant("Base", {"bounding.method": "group"}, untrained=True)
GROUP = Variant("DP-GCL", {"bounding.method": "group"})
NONE = Variant("Non-Private", {"bounding.method": "none"})
SMALL = Experiment("small", "Small", ("fashion-mnist",), (BASE, GROUP, NONE), epsilons=(4.0, 10.0))


@pytest.fixture
def data(tiny, tmp_path) -> DataSet:
    """The tiny configuration as a data set that needs no path, by the name of one that the paper has."""
    tiny["privacy"]["steps"] = 4
    tiny["evaluation"] = {"tasks": ["retrieval"], "records": 50}
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(tiny))
    return DataSet("fashion-mnist", str(path), RETRIEVAL, generated=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Where runs are kept from test to test: what one has trained, the next one finds."""
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture
def request_for(data, kept):
    def make(chosen: Experiment = SMALL, **changes) -> Request:
        whole = Request(chosen, data, "cpu", chosen.epsilons, None, kept / "none", False, kept)
        return dataclasses.replace(whole, **changes)

    return make


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """One entry for each noisy step that is taken."""
    real, taken = Coordinator.apply, []

    def apply(self, step, total):
        taken.append(step)
        return real(self, step, total)

    monkeypatch.setattr(Coordinator, "apply", apply)
    return taken


@pytest.mark.slow
def test_each_configuration_is_trained_once_and_kept(request_for, steps, kept):
    assert not list(kept.iterdir()), "this test must come first"
    outcome = reproduce(request_for())
    assert len(steps) == SMALL.count("cpu") * 4 == 3 * 4  # two promises and, once, no privacy; "Base" is not a run of its own
    assert {row.method for row in outcome.rows} == {"group", "none"}
    again = reproduce(request_for())
    assert len(steps) == 12
    assert again.rows == outcome.rows
    reproduce(request_for(dataclasses.replace(SMALL, name="other"), epsilons=(10.0,)))
    assert len(steps) == 12, "a run that another experiment has made was made again"


@pytest.mark.long
def test_an_interrupted_experiment_goes_on(request_for, monkeypatch, tmp_path):
    real, calls = Coordinator.apply, itertools.count(1)

    def apply(self, step, total):
        if next(calls) == 4:
            raise Killed
        return real(self, step, total)

    monkeypatch.setattr(Coordinator, "apply", apply)
    request = request_for(epsilons=(10.0,), methods=("group",), out=tmp_path)
    with pytest.raises(Killed):
        reproduce(request)
    outcome = reproduce(request)
    assert next(calls) == 4 + 1 + 1, "steps that were released before were taken again"
    assert outcome.runs.popitem()[1].results["privacy"]["steps_charged"] == 4


@pytest.mark.long
def test_published_figures_stand_beside_ours(request_for, shapes):
    beside_ours = dataclasses.replace(SMALL, table="1", epsilons=(10.0,))
    measured = dataclasses.replace(request_for().data, metrics=("linear_probe_accuracy", "knn3_accuracy"))
    outcome = reproduce(request_for(beside_ours, data=measured, methods=("group",)))
    published = {(row.label, row.metric): row.published for row in outcome.rows}
    assert published["Base", "linear_probe_accuracy"] == 76.0
    assert published["DP-GCL", "knn3_accuracy"] == 82.8
    none = reproduce(request_for(epsilons=(10.0,), methods=("none",)))  # an experiment that no table of the paper is beside
    assert {row.published for row in none.rows} == {None}


@pytest.mark.long
def test_every_output_says_what_it_is(request_for):
    files = reproduce(request_for(epsilons=(10.0,))).write()
    with open(files["figures"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["scale"], row["data"]) for row in rows} == {("cpu", "fashion-mnist")}
    page = files["page"].read_text()
    assert "B = 60, T = 4" in page
    assert "because no guarantee holds for fashion-mnist-none" in page


def test_the_list_names_every_experiment():
    app = typer.Typer()
    command.register(app)
    printed = CliRunner().invoke(app, ["--list"]).output
    for name, chosen in EXPERIMENTS.items():
        assert name in printed
        assert chosen.title in printed


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("figure4", "--data", "shapes", "--path", "mine"), "experiment-path-unused"),
        (("figure4", "--data", ""), "experiment-data-set"),
    ],
)
def test_no_option_is_passed_over(dpfed, words, code):
    ended, _, error = dpfed("reproduce", *words)
    assert ended == 2 and f"[{code}]" in error


@pytest.mark.parametrize(
    ("name", "methods", "message"),
    [
        ("table99", None, "experiment-none"),
        ("table1", ("dpcl",), "experiment-method"),
        ("table12", None, r"audit membership.*\[experiment-elsewhere"),
        ("figure9", None, r"drawn once.*\[experiment-elsewhere"),
        ("table14", None, r"published figures are in.*\[experiment-elsewhere"),
    ],
)
def test_unknown_names_are_refused(name, methods, message, request_for):
    with pytest.raises(UserError, match=message):
        plan_runs(request_for(experiment(name), methods=methods))
