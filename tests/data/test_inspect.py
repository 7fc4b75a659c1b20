"""`dpfed data import` and `inspect`: what they say about captions and units."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def facts(*arguments: object) -> dict:
    return json.loads(invoke("inspect", *arguments, "--json"))


@pytest.fixture
def store(tmp_path: Path, pictures) -> Path:
    """Ann has three images, one of them in the test split; Ben one; the last record is of nobody."""
    captions = [("one two three four five",), ("one two three four", "one"), ("one",), ("six " * 6,), ("one",)]
    people = ["Ann", "Ann", "Ann", "Ben", None]
    with StoreWriter(tmp_path / "s", name="people", kind="image-text", size=8, unit_name="person") as writer:
        for row, (texts, person) in enumerate(zip(captions, people, strict=True)):
            split = "test" if row == 1 else "train"
            writer.add(RecordInput(str(row), pictures.array(), texts, split=split, unit=person))
    return tmp_path / "s"


def test_captions_and_units_are_counted(store: Path) -> None:
    counts = facts(store)
    assert counts["captions"] == {"total": 6, "most_per_record": 2}
    assert counts["units"] == {"name": "person", "number": 3, "most_records": 3, "in_several_splits": 1}
    printed = invoke("inspect", store)
    assert "most per record 2" in printed and "in several splits 1" in printed


@pytest.mark.parametrize("unit", [None, "person_id"])
@pytest.mark.parametrize("title", [None, "title"])
def test_an_import_says_what_is_protected(tmp_path: Path, pictures, unit: str | None, title: str | None) -> None:
    pictures.file(tmp_path / "a.png")
    columns = {"filepath": "a.png"} | ({title: "a cat"} if title else {}) | ({unit: "Ann"} if unit else {})
    (tmp_path / "t.csv").write_text(",".join(columns) + "\n" + ",".join(columns.values()) + "\n")
    printed = invoke("import", tmp_path / "t.csv", tmp_path / "s")
    assert ("captions of an image are ONE record" in printed) == bool(title)
    assert ("person" in printed and 'privacy.unit = "user"' in printed) == bool(unit)
    assert "Ann" not in printed


def test_an_import_ends_with_the_columns_that_were_not_used(tmp_path: Path, pictures) -> None:
    pictures.file(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("Image Path,title,Rating [bold],Alt,pid\na.png,a cat,5,a pet,Ann\n")
    printed = invoke("import", tmp_path / "t.csv", tmp_path / "s")
    assert printed.splitlines()[-1] == "Columns that were not used: Rating [bold], Alt."
    (tmp_path / "u.csv").write_text("file_name,title\na.png,a cat\n")
    assert "not used" not in invoke("import", tmp_path / "u.csv", tmp_path / "u")
