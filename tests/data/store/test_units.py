"""Units: what several records share, such as a person."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.importers.source import unit_of
from dpfed.data.store.record import RecordInput, record_key
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError


def write(path: Path, units: dict[str, str | None], pictures, hold_out: dict[str, int] | None = None) -> RecordStore:
    """A store of records (id -> unit)."""
    with StoreWriter(path, name="people", kind="image", size=8, unit_name="person") as writer:
        for id, unit in units.items():
            writer.add(RecordInput(id, pictures.array(8, 8), unit=unit))
        for split, count in (hold_out or {}).items():
            writer.hold_out(count, split)
    return RecordStore.open(path)


def people(count: int, images: int) -> dict[str, str]:
    return {f"{person}/{image}": f"p{person}" for person in range(count) for image in range(images)}


def test_records_share_their_units_key_and_others_have_their_own(tmp_path: Path, pictures) -> None:
    store = write(tmp_path / "s", {"a": "Ann", "b": "Ben", "c": "Ann", "d": None, "e": ""}, pictures)
    assert store.unit_name == "person" and store.units.dtype == np.uint64
    assert store.units.tolist() == [record_key(name) for name in ("Ann", "Ben", "Ann", "d", "e")]
    assert store.keys.tolist() == [record_key(id) for id in "abcde"]


def test_spaces_around_a_units_name_do_not_count(tmp_path: Path, pictures) -> None:
    store = write(tmp_path / "s", {"a": "Ann", "b": " Ann\n", "c": "  ", "d": "\u00a0"}, pictures)
    assert store.units.tolist() == [record_key(name) for name in ("Ann", "Ann", "c", "d")]
    with StoreWriter(tmp_path / "t", name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", pictures.array(), unit=" "))
    assert RecordStore.open(tmp_path / "t").units is None


def test_a_unit_that_is_no_text_is_refused(tmp_path: Path, pictures) -> None:
    with pytest.raises(UserError, match="'a'.* got 7.*record-unit"):
        write(tmp_path / "s", {"a": 7}, pictures)


def test_a_store_whose_source_names_no_units_has_none(tmp_path: Path, pictures) -> None:
    with StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", pictures.array()))
    store = RecordStore.open(tmp_path / "s")
    assert store.units is None and store.unit_name is None


def test_a_store_that_lost_its_units_is_damaged(tmp_path: Path, pictures) -> None:
    with StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", pictures.array()))
    header = json.loads((tmp_path / "s" / "store.json").read_text())
    (tmp_path / "s" / "store.json").write_text(json.dumps(header | {"unit_name": "person"}))
    with pytest.raises(UserError, match="store-damaged"):
        RecordStore.open(tmp_path / "s")


def test_units_and_captions_of_no_valid_text_are_refused_by_name(tmp_path: Path, pictures) -> None:
    half = json.loads('"\\ud800"')
    with pytest.raises(UserError, match="'a'.*person.*unit-text"):
        write(tmp_path / "s", {"a": half}, pictures)
    with (
        pytest.raises(UserError, match="caption.*record-unreadable"),
        StoreWriter(tmp_path / "s", name="x", kind="image-text") as writer,
    ):
        writer.add(RecordInput("a", pictures.array(), (half,)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 20, 31])
def test_whole_units_are_held_out_until_there_are_enough_records(tmp_path: Path, pictures, count: int) -> None:
    store = write(tmp_path / "s", people(40, 3), pictures, {"validation": count, "test": count})
    units = {split: set(store.units[store.split(split)].tolist()) for split in ("train", "validation", "test")}
    assert sum(map(len, units.values())) == 40 == len(set.union(*units.values()))
    for split in ("validation", "test"):
        assert count <= len(store.split(split)) < count + 3


def test_held_out_units_depend_on_their_names_alone(tmp_path: Path, pictures) -> None:
    def chosen(name: str, units: dict[str, str]) -> set[int]:
        store = write(tmp_path / name, units, pictures, {"validation": 20})
        return set(store.units[store.split("validation")].tolist())

    units = people(40, 2)
    first = chosen("first", units)
    assert chosen("backwards", dict(reversed(units.items()))) == first
    assert chosen("renamed", {f"new-{id}": unit for id, unit in units.items()}) == first
    places = [row for row, unit in enumerate(units.values()) if record_key(unit) in first]
    assert places[0] < 20 and places[-1] >= 60  # not the first ones


def test_a_record_less_moves_only_the_next_into_a_hold_out(tmp_path: Path, pictures) -> None:
    """Records are their own units here: what is held out follows from each one's name, not from its place."""

    def chosen(name: str, ids: list[str]) -> set[int]:
        with StoreWriter(tmp_path / name, name="x", kind="image", size=8) as writer:
            for id in ids:
                writer.add(RecordInput(id, pictures.array(8, 8)))
            writer.hold_out(20, "validation")
        store = RecordStore.open(tmp_path / name)
        return set(store.keys[store.split("validation")].tolist())

    ids = [f"r{number}" for number in range(60)]
    first = chosen("first", ids)
    assert len(first) == 20 and chosen("backwards", ids[::-1]) == first
    for gone in (0, 30):
        assert len(chosen(f"without-{gone}", ids[:gone] + ids[gone + 1 :]) - first) == (record_key(ids[gone]) in first)


@pytest.mark.parametrize("cells", [(1, 1.0), ("1", "1.0"), (1, "1"), (" 7 ", 7.0), ("p1", "p1 ")])
def test_a_number_is_one_unit_however_it_is_written(cells):
    assert unit_of(cells[0]) == unit_of(cells[1]) is not None


@pytest.mark.parametrize("cells", [(1, 10), ("1.0", "1.01"), ("p1.0", "p1"), (1.5, 1)])
def test_different_cells_stay_different_units(cells):
    assert unit_of(cells[0]) != unit_of(cells[1])


@pytest.mark.parametrize("cell", [None, "", "  ", float("nan")])
def test_an_empty_cell_names_no_unit(cell):
    assert unit_of(cell) is None
