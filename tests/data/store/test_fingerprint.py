"""A data set's fingerprint names the records to who has them, and tells nobody else anything of them."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from dpfed.cli import app
from dpfed.data.store.division import divide_store
from dpfed.data.store.fingerprint import contents_of, new_key
from dpfed.data.store.layout import HEADER, INDEX
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError


def record(number, **changes):
    given = {
        "image": np.full((8, 8, 3), number, np.uint8),
        "captions": (f"number {number}",),
        "labels": {"parity": number % 2},
        "unit": f"person {number // 2}",
    }
    return RecordInput(f"r{number}", **{**given, **changes})


def write(path, records, public=False, size=8):
    names = {"parity": ["even", "odd"]}
    with StoreWriter(
        path, name="n", kind="image-text", size=size, public=public, label_names=names, unit_name="person"
    ) as writer:
        for item in records:
            writer.add(item)
        writer.hold_out(4, "test")
    return RecordStore.open(path)


def fingerprint(store):
    return contents_of(store, bytes.fromhex(store.contents_key or ""))["fingerprint"]


def inspect(path, *options):
    return CliRunner().invoke(app, ["data", "inspect", str(path), *options])


ALL = [record(number) for number in range(20)]


def test_what_was_hashed_while_writing_is_what_is_stored(tmp_path):
    for size in (8, None):
        for public in (True, False):
            store = write(tmp_path / f"{size}-{public}", ALL, public, size)
            assert store.contents == fingerprint(store) and len(store.contents) == 32


def test_equal_public_records_have_one_fingerprint_in_any_order(tmp_path):
    first, second = write(tmp_path / "a", ALL, True), write(tmp_path / "b", ALL[::-1], True)
    assert first.contents == second.contents and first.contents_key is None


@pytest.mark.parametrize(
    "changes",
    [
        {"captions": ("number three",)},
        {"labels": {"parity": 0}},
        {"labels": {}},
        {"unit": "person 9"},
        {"image": np.full((8, 8, 3), 77, np.uint8)},
        {"split": "validation"},
    ],
)
def test_any_change_of_a_record_changes_it(tmp_path, changes):
    """Splits are compared before anybody is held out, or a change of the unit would hold out others."""
    changed = [*ALL[:3], record(3, **changes), *ALL[4:]]
    assert write(tmp_path / "a", ALL, True).contents != write(tmp_path / "b", changed, True).contents


def test_of_private_records_it_is_random_to_who_lacks_the_key(tmp_path):
    """Two imports of the same records share nothing, so nobody can try candidates for a record against it."""
    first, second = write(tmp_path / "a", ALL), write(tmp_path / "b", ALL)
    assert first.contents != second.contents and first.contents_key != second.contents_key
    assert len(bytes.fromhex(first.contents_key)) == 32
    for guess in (new_key(public=False), b""):
        assert contents_of(first, guess)["fingerprint"] != first.contents
    plain = write(tmp_path / "c", ALL, public=True).contents
    assert plain != first.contents  # what a plain hash would be


def test_a_part_has_its_own(tmp_path):
    store = write(tmp_path / "a", ALL)
    parts = divide_store(store.path, tmp_path / "sites", 2, 0.0)
    assert len({store.contents, *(part.contents for part in parts)}) == 4
    assert len({store.contents_key, *(part.contents_key for part in parts)}) == 4
    assert all(part.contents == fingerprint(part) for part in parts)


def test_inspect_shows_it_never_the_key_and_checks_it(tmp_path):
    store = write(tmp_path / "a", ALL)
    for options in ([], ["--json"], ["--check"], ["--check", "--json"]):
        shown = inspect(store.path, *options)
        assert shown.exit_code == 0 and store.contents in shown.output and store.contents_key not in shown.output
    other = write(tmp_path / "b", [*ALL[:-1], record(99, unit="person 9")])
    header = json.loads((store.path / HEADER).read_text())
    for name in header["files"]:
        shutil.copy(other.path / name, store.path / name)
    header["files"] = json.loads((other.path / HEADER).read_text())["files"]
    (store.path / HEADER).write_text(json.dumps(header))
    result = inspect(store.path, "--check")
    assert isinstance(result.exception, UserError) and "changed since" in str(result.exception)


@pytest.mark.parametrize("wrong", ["keys", "training_units"])
def test_inspect_checks_what_the_fingerprint_does_not_cover(tmp_path, monkeypatch, wrong):
    store = write(tmp_path / "a", ALL)
    header, index = json.loads((store.path / HEADER).read_text()), pa.ipc.open_file(store.path / INDEX).read_all()
    if wrong == "keys":
        turned = pa.array(np.roll(store.keys, 1))
        with pa.ipc.new_file(str(store.path / INDEX), index.schema) as writer:
            writer.write_table(index.set_column(0, index.schema.field("key"), turned))
    else:
        monkeypatch.setattr("dpfed.data.store.index.WHOLE", 0)  # as for millions of records, whose units are not counted
        (store.path / HEADER).write_text(json.dumps(header | {"training_units": header["training_units"] - 1}))
    assert inspect(store.path).exit_code == 0
    result = inspect(store.path, "--check")
    assert isinstance(result.exception, UserError) and result.exception.code == "store-damaged"
