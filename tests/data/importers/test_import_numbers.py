"""Numbers and places that cannot be meant: one sentence, exit code 2, nothing made; in the library as on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.data.importers import import_records
from dpfed.data.store.division import divide_store
from dpfed.data.store.record import RecordInput
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
    with pytest.raises(UserError, match="data-number|import-held-out"):
        import_records(source, tmp_path / "s", **{split: count})
    with (
        pytest.raises(UserError, match="data-number|split-too-large"),
        StoreWriter(tmp_path / "s", name="x", kind="image", size=8) as writer,
    ):
        writer.add(RecordInput("a", np.zeros((8, 8), np.uint8)))
        writer.hold_out(count, split)
    assert sorted(os.listdir(tmp_path)) == ["in"]


@pytest.mark.parametrize("size", [0, -5, 4097, 100_000_000, 10**30, 8.5, True, "32", float("inf")])
def test_sizes(tmp_path: Path, source: Path, size: object) -> None:
    with pytest.raises(UserError, match="side of stored images.*data-number"):
        import_records(source, tmp_path / "s", size=size)
    with pytest.raises(UserError, match="side of stored images.*data-number"):
        StoreWriter(tmp_path / "s", name="x", kind="image", size=size)
    assert sorted(os.listdir(tmp_path)) == ["in"]


@pytest.mark.parametrize("number", [0, -3, 4097, 100_000, 10**30, 2.5, True, "4", None])
def test_numbers_of_sites(tmp_path: Path, store: Path, number: object) -> None:
    with pytest.raises(UserError, match="sites.*(data-number|store-few-sites)"):
        divide_store(store, tmp_path / "s", number, 0)
    assert not (tmp_path / "s").exists()


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
    ],
    ids=str,
)
def test_the_command_line_answers_in_a_sentence(tmp_path: Path, source: Path, store: Path, arguments: list[str | bytes]):
    named = {"SOURCE": str(source), "DEST": str(tmp_path / "s"), "STORE": str(store)}
    words = [os.fsdecode(word) if isinstance(word, bytes) else named.get(word, word) for word in arguments]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError | SystemExit), result.exception
    assert result.exit_code != 0 and not (tmp_path / "s").exists() and "\n" not in str(result.exception)


@pytest.mark.parametrize("wait", [-1, float("nan"), "3", None])
def test_a_wait_that_is_no_duration(tmp_path: Path, source: Path, wait: object) -> None:
    with pytest.raises(UserError, match="import-wait"):
        import_records(source, tmp_path / "s", wait=wait)


def test_no_source_and_no_format(tmp_path: Path, source: Path) -> None:
    with pytest.raises(UserError, match="import-no-source"):
        import_records([], tmp_path / "s")
    with pytest.raises(UserError, match="import-format-unknown"):
        import_records(source, tmp_path / "s", format=5)
