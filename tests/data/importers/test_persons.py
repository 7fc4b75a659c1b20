"""Persons that paths name: they are units and no classes, and what only looks like a person stays a class."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from dpfed.data.importers import import_records
from dpfed.data.importers.persons import persons_of
from dpfed.data.importers.source import UNIT_NAMES
from dpfed.data.store.records import RecordStore


def groups(store: RecordStore) -> set[frozenset[str]]:
    """Ids of the records that share a unit."""
    rows = np.arange(len(store))
    found: dict[object, set[str]] = {}
    for id, unit in zip(store.ids(rows), store.units.tolist(), strict=True):
        found.setdefault(unit, set()).add(id)
    return {frozenset(ids) for ids in found.values()}


def test_folders_of_patients_are_units(tmp_path: Path, pictures) -> None:
    for name in ("patient_001/a.png", "patient_001/left/b.png", "patient_002/a.png", "Patient 2/c.png"):
        pictures.file(tmp_path / "in" / name)
    said: list[str] = []
    report = import_records(tmp_path / "in", tmp_path / "s", say=said.append)
    store = RecordStore.open(tmp_path / "s")
    assert store.unit_name == "patient" and not store.label_names
    assert groups(store) == {
        frozenset({"patient_001/a.png", "patient_001/left/b.png"}),
        frozenset({"patient_002/a.png", "Patient 2/c.png"}),
    }
    assert report.unit_name == "patient" and "2 patients ('patient' with a number)" in " ".join(said)
    assert "patient_001" not in " ".join(said)  # a path may tell who a person is


def test_classes_above_patients_stay_and_a_patient_of_two_classes_is_one(tmp_path: Path, pictures) -> None:
    for name in ("train/ill/case7/a.png", "train/well/case7/b.png", "train/well/case8/a.png", "test/ill/case7/c.png"):
        pictures.file(tmp_path / "in" / name)
    import_records(tmp_path / "in", tmp_path / "s")
    store = RecordStore.open(tmp_path / "s")
    assert store.label_names == {"label": ["ill", "well"]}
    assert frozenset({"train/ill/case7/a.png", "train/well/case7/b.png", "test/ill/case7/c.png"}) in groups(store)


def test_captions_and_tables_beside_patients(tmp_path: Path, pictures) -> None:
    names = ("sub-01/ses-1.png", "sub-01/ses-2.png", "sub-02/ses-1.png")
    for name in names:
        pictures.file(tmp_path / "in" / name).with_suffix(".txt").write_text("a scan")
        pictures.file(tmp_path / "rows" / name)
    lines = [f"{name},a scan" for name in names]
    (tmp_path / "rows" / "table.csv").write_text("\n".join(["filepath,title", *lines]))
    for number, source in enumerate(("in", "rows/table.csv")):
        store = RecordStore.open(import_records(tmp_path / source, tmp_path / f"store{number}").path)
        assert store.unit_name == "person" and store.kind == "image-text" and not store.label_names
        assert groups(store) == {frozenset(names[:2]), frozenset(names[2:])}


def test_a_column_of_units_counts_more_than_paths(tmp_path: Path, pictures) -> None:
    for name in ("sub-01/a.png", "sub-01/b.png", "sub-02/a.png"):
        pictures.file(tmp_path / name)
    (tmp_path / "t.csv").write_text("filepath,patient_id\nsub-01/a.png,x\nsub-01/b.png,y\nsub-02/a.png,y\n")
    store = RecordStore.open(import_records(tmp_path / "t.csv", tmp_path / "s").path)
    assert store.unit_name == "patient"
    assert groups(store) == {frozenset({"sub-01/a.png"}), frozenset({"sub-01/b.png", "sub-02/a.png"})}


@pytest.mark.parametrize(
    "paths",
    [
        ["cat/1.png", "cat/2.png", "dog/1.png"],
        ["person/1.png", "person/2.png", "case/1.png", "patients/3.png"],  # classes, without numbers
        ["case1.png", "case2.png", "case3.png"],  # a picture of each is its own unit already
        ["subject_1/a.png", "subject_2/a.png"],
        ["sub1/a.png", "sub1/b.png", "sub2/a.png"],  # parts of a data set
        ["subway1/a.png", "subway1/b.png", "subway2/a.png"],
        ["pattern_1/a.png", "pattern_1/b.png", "pattern_2/a.png"],
    ],
)
def test_what_only_looks_like_persons(paths: list[str]) -> None:
    found = persons_of([PurePosixPath(path) for path in paths])
    assert found.unit_name is None and set(found.units) == {None} and not found.notice


def test_a_few_persons_among_other_images_are_said_and_not_protected() -> None:
    persons = ["subject_1/a.png", "subject_1/b.png", "subject_2/a.png"]
    found = persons_of([PurePosixPath(path) for path in (*persons, *(f"cat/{n}.png" for n in range(4)))])
    assert found.unit_name is None and set(found.units) == {None}
    assert "2 persons ('subject' with a number) in the paths of 3 of 7 images" in found.notice
    assert "column person_id" in found.notice and "person_id" in UNIT_NAMES


def test_names_of_files_and_images_of_nobody() -> None:
    found = persons_of([PurePosixPath(name) for name in ("x/sub-1_a.png", "x/sub-01_b.png", "y/sub-2_a.png", "cover.png")])
    assert found.units[0] == found.units[1] != found.units[2] and found.units[3] is None
    assert "2 persons ('sub' with a number) in the paths of 3 of 4 images:" in found.notice


def test_a_number_that_is_too_long_for_a_file_name_is_no_person() -> None:
    paths = [PurePosixPath(f"patient{'1' * 5000}/{name}.png") for name in "abcd"]
    assert persons_of(paths).unit_name is None
