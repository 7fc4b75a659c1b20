"""dpfed's own parts are announced by entry points, as those of other packages are."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import EntryPoint

import pytest

import dpfed.data.importers
import dpfed.reproduce.importers
from dpfed import discovery
from dpfed.baselines import methods as baselines
from dpfed.bounding import methods
from dpfed.data.importers.source import Importer
from dpfed.objectives.objective import Objective
from dpfed.privacy.method import METHODS, Method


def modules(*rooms):
    return [
        importlib.import_module(f"{room.__name__}.{file.name}")
        for room in rooms
        for file in pkgutil.iter_modules(room.__path__)
    ]


def made_in(rooms, is_part):
    """The parts in some folders, by the module and the name of each."""
    return {
        f"{module.__name__}:{name}"
        for module in modules(*rooms)
        for name, value in vars(module).items()
        if is_part(value) and getattr(value, "__module__", module.__name__) in (module.__name__, type(value).__module__)
    }


def is_importer(value):
    return isinstance(value, type) and issubclass(value, Importer) and bool(getattr(value, "name", ""))


ROOMS = {
    "losses": ((dpfed.objectives,), lambda value: isinstance(value, Objective)),
    "methods": ((methods, baselines), lambda value: isinstance(value, Method)),
    "importers": ((dpfed.data.importers, dpfed.reproduce.importers), is_importer),
}


@pytest.mark.parametrize("kind", ROOMS)
def test_every_part_of_ours_is_announced(kind):
    assert {part.place for part in discovery.shipped(kind).values()} == made_in(*ROOMS[kind])


def test_the_names_are_those_of_the_parts():
    for name, part in (discovery.shipped("methods") | discovery.shipped("importers")).items():
        assert part.load().name == name
    assert all(callable(part.load()) for part in discovery.shipped("encoders").values())


def test_the_metadata_of_an_older_installation_change_nothing(monkeypatch):
    """A checkout whose installation announces other parts of dpfed than its files have."""
    group, removed = "dpfed.methods", "dpfed.bounding.methods.removed:METHOD"
    points = [EntryPoint("removed", removed, group), EntryPoint("group", "dpfed.elsewhere:METHOD", group)]

    class Points(list):
        def select(self, group):
            return [point for point in self if point.group == group]

    monkeypatch.setattr(discovery, "_entry_points", lambda: Points(points))
    assert not discovery.announced("methods") and set(discovery.methods()) == set(METHODS)


def test_parts_of_a_missing_room_are_left_out(monkeypatch):
    monkeypatch.setattr(discovery, "has", lambda room: room not in ("baselines", "reproduce"))
    assert set(discovery.methods()) == {"batch", "group", "moments", "none", "public"}
    assert "camelyon17" not in discovery.shipped("importers") and "folder" in discovery.shipped("importers")
