from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dpfed.artifacts import provenance
from dpfed.artifacts.directory import RunDirectory
from dpfed.errors import UserError

FACTS: dict[str, Any] = {
    "began": "2026-01-01",
    "data": {"name": "scans", "fingerprint": None, "keyed": True, "generated": None},
    "environments": [{"commit": None, "hardware": "2 cores", "versions": {"dpfed": "1"}}],
    "public": {"name": "web", "records": 7, "fingerprint": "ab"},
    "start": {
        "weights": "runs/before",
        "sha256": "cd",
        "trained": [
            {"run": None, "data": None, "public": None, "generated": False, "guarantee": None},
            dict(run="r", data="d", public=False, generated=False, guarantee=True, epsilon=1.0, delta=1e-6, unit="record"),
        ],
    },
}


def _damaged(facts: Any, path: tuple = ()) -> Iterator[tuple[str, Any]]:
    """The facts with one value gone, or of another kind."""
    inside = facts
    for key in path:
        inside = inside[key]
    for key in inside if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else ():
        for what in ("gone", "another kind"):
            changed = copy.deepcopy(facts)
            holder = changed
            for step in path:
                holder = holder[step]
            if what == "gone":
                del holder[key]
            else:
                holder[key] = 7.5
            yield f"{'.'.join(map(str, (*path, key)))} {what}", changed
        yield from _damaged(facts, (*path, key))


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_what_a_run_writes_of_itself_is_read(run):
    (run.path / "provenance.json").write_text(json.dumps(FACTS))
    assert run.provenance == FACTS


def test_a_run_without_it_is_not_read(run):
    with pytest.raises(UserError, match="provenance-gone"):
        run.provenance  # noqa: B018


@pytest.mark.parametrize("damage", [pytest.param(facts, id=name) for name, facts in _damaged(FACTS)])
def test_a_damaged_one_is_refused_or_makes_a_card_all_the_same(run, damage):
    (run.path / "provenance.json").write_text(json.dumps(damage))
    try:
        facts = run.provenance
    except UserError as error:
        assert error.code == "provenance-odd"
    else:
        assert dict(provenance.rows("id", facts))


@pytest.mark.parametrize("text", ["null", "{}", '""', "0", "false"])
def test_damaged_disclosures_are_not_taken_for_none(run, text):
    assert run.disclosures == set()
    (run.path / "disclosures.json").write_text(text)
    with pytest.raises(UserError, match="disclosures.json is damaged"):
        _ = run.disclosures


def test_a_damaged_id_of_a_run_is_refused(run):
    assert run.identity == ""
    (run.path / ".lock").write_bytes(b"\xff")
    with pytest.raises(UserError, match="run-id"):
        _ = run.identity
