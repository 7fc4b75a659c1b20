"""Numbers and places that cannot be meant: one sentence, exit code 2, nothing made; in the library as on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.config import parse_config
from dpfed.data.importers import detect, import_records
from dpfed.data.opening import open_records
from dpfed.data.store.division import divide_store
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError


@pytest.fixture
def source(tmp_path: Path, pictures) -> Path:
    for number in range(6):
        pictures.file(tmp_path / "in" / "a" / f"{number}.png")
    return tmp_path / "in"


@pytest.fixture
def store(tmp_path: Path, source: Path) -> Path:
    return import_records(source, tmp_path / "store", size=8, validation=1).path


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("count", [-1, -(10**30), 6, 10**30, 1.5, float("nan"), True, "3", None, np.float64(1)])
def test_numbers_of_held_out_records(tmp_path: Path, source: Path, split: str, count: object) -> None:
    with pytest.raises(UserError, match="records"):
        import_records(source, tmp_path / "s", **{split: count})
    with pytest.raises(UserError), StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer:
        writer.add(RecordInput("a", np.zeros((8, 8), np.uint8)))
        writer.hold_out(count, split)
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_numpy_integer_is_a_number(tmp_path: Path, source: Path) -> None:
    report = import_records(source, tmp_path / "s", size=np.int64(8), validation=np.int32(2))
    assert report.counts["validation"] == 2 and RecordStore.open(tmp_path / "s").size == 8


@pytest.mark.parametrize("size", [0, -5, 4097, 100_000_000, 10**30, 8.5, True, "32", float("inf")])
def test_sizes(tmp_path: Path, source: Path, size: object) -> None:
    with pytest.raises(UserError, match="side of stored images"):
        import_records(source, tmp_path / "s", size=size)
    with pytest.raises(UserError, match="side of stored images"):
        StoreWriter(tmp_path / "s", name="x", kind="image", size=size)
    assert sorted(os.listdir(tmp_path)) == ["in"]


@pytest.mark.parametrize("number", [0, -3, 4097, 100_000, 10**30, 2.5, True, "4", None])
def test_numbers_of_sites(tmp_path: Path, store: Path, number: object) -> None:
    with pytest.raises(UserError, match="sites"):
        divide_store(store, tmp_path / "s", number, 0)
    assert not (tmp_path / "s").exists()


EMPTY = ["", " ", "\t"]
NO_NAMES = [*EMPTY, "a\0b", "a\udcff", "x" * 300, "y/" * 3000, 5, None]


@pytest.mark.parametrize("place", NO_NAMES, ids=lambda place: repr(place)[:12])
def test_places_that_are_none(
    tmp_path: Path, source: Path, store: Path, place: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store)  # a store: what an empty name must not mean
    calls = [
        lambda: import_records(place, tmp_path / "s"),
        lambda: import_records(source, place),
        lambda: detect(place),
        lambda: divide_store(store, place, 2, 0),
        lambda: StoreWriter(place, name="x", kind="image"),
        lambda: RecordStore.open(place),
    ]
    if isinstance(place, str):
        calls += [
            lambda: open_records(parse_config({"data": {"source": "folder", "path": place, "stores": str(tmp_path)}}).data),
            lambda: open_records(parse_config({"data": {"source": "store", "path": place}}).data),
        ]
    before = sorted(os.listdir(tmp_path)), sorted(os.listdir(store))
    for call in calls:
        with pytest.raises(UserError):
            call()
    assert (sorted(os.listdir(tmp_path)), sorted(os.listdir(store))) == before


def test_the_current_folder_can_be_named(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    assert import_records(".", tmp_path / "s").counts["train"] == 6
    assert import_records(os.fsencode(source) and source, tmp_path / "t").counts["train"] == 6


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "", "DEST"],
        ["import", "SOURCE", ""],
        ["import", "SOURCE", b"\xff"],
        ["import", b"\xff", "DEST"],
        ["import", "SOURCE", "DEST", "--size", "0"],
        ["import", "SOURCE", "DEST", "--size", "100000000"],
        ["import", "SOURCE", "DEST", "--size", "99999999999999999999999"],
        ["import", "SOURCE", "DEST", "--validation", "-1"],
        ["import", "SOURCE", "DEST", "--test", "-99999999999999999999999"],
        ["import", "SOURCE", "DEST", "--format", ""],
        ["import", "SOURCE", "DEST", "--id", ""],
        ["import", "SOURCE", "SOURCE", "DEST"],
        ["import", "SOURCE", "STORE"],
        ["import", "SOURCE", "/dev/null/x"],
        ["inspect", ""],
        ["inspect", b"\xff"],
        ["inspect", "STORE", "--context", "99999999999999999999999"],
    ],
    ids=str,
)
def test_the_command_line_answers_in_a_sentence(
    tmp_path: Path, source: Path, store: Path, arguments: list[str | bytes]
) -> None:
    named = {"SOURCE": str(source), "DEST": str(tmp_path / "s"), "STORE": str(store)}
    words = [os.fsdecode(word) if isinstance(word, bytes) else named.get(word, word) for word in arguments]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError | SystemExit), result.exception
    assert result.exit_code != 0 and not (tmp_path / "s").exists() and "\n" not in str(result.exception)


def test_names_that_look_like_markup_are_printed_as_they_are(tmp_path: Path, source: Path) -> None:
    def said(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    odd = tmp_path / "[/]:smile:\n\x1b[2J\\"
    odd.parent.mkdir()
    source.rename(odd)
    assert r"[b]\[/:smile:\n: image records" in said("import", odd, tmp_path / "[b]\\[" / ":smile:\n").replace("/:", "/:")
    place = tmp_path / "[b]\\[" / ":smile:\n"
    assert "]:smile:\\n\\x1b[2J\\" in said("inspect", place)  # a store is called what the last part of its source's path is


def test_a_name_that_is_not_utf8_is_a_sentence_in_a_real_terminal_too(tmp_path: Path, source: Path) -> None:
    command = [sys.executable, "-c", "from dpfed.cli import main; main()", "data", "import", os.fsencode(source)]
    done = subprocess.run(
        [*command, os.fsencode(tmp_path) + b"/\xff"], capture_output=True, env=os.environ | {"LC_ALL": "C.UTF-8"}
    )
    assert done.returncode == 2 and done.stderr.startswith(b"error: ") and done.stderr.count(b"\n") == 1
