"""What a long benchmark has found is kept in its result file, and only there is it looked for."""

from __future__ import annotations

import json

import pytest

import benchmarks.kept
import benchmarks.record
from benchmarks.kept import KeptRuns


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    for module in (benchmarks.kept, benchmarks.record):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


def never():
    raise AssertionError("trained again")


def test_another_process_finds_what_was_trained(results):
    first = KeptRuns("long").find({"method": "group", "run": 0}, {"data.path": "/here", "rate": 1}, lambda: {"after": 1})
    there = KeptRuns("long").find({"method": "group", "run": 0}, {"data.path": "/elsewhere", "rate": 1}, never)
    assert there == first and there["after"] == 1
    assert not json.loads((results / "long.json").read_text())["figures"]["finished"]


def test_other_settings_are_trained_again_and_take_the_place():
    KeptRuns("long").find({"run": 0}, {"rate": 1}, lambda: {"after": 1})
    kept = KeptRuns("long")
    assert kept.find({"run": 0}, {"rate": 2}, lambda: {"after": 2})["after"] == 2
    with pytest.raises(AssertionError, match="trained again"):
        KeptRuns("long").find({"run": 0}, {"rate": 1}, never)


def test_the_finished_file_holds_what_was_wanted_alone(results):
    kept = KeptRuns("long")
    entries = [kept.find({"run": run}, {}, lambda: {}) for run in range(3)]
    kept.finish(entries[:2], steps=5)
    figures = json.loads((results / "long.json").read_text())["figures"]
    assert figures["finished"] and figures["steps"] == 5 and [entry["run"] for entry in figures["runs"]] == [0, 1]
