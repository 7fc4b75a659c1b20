"""Labels mean the same class in every file, however each file writes it."""

from __future__ import annotations

import decimal
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import import_records
from dpfed.data.importers.classes import class_of, number_classes
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "numbers", "names"),
    [
        ([2, 0, None, -1], {"0": 0, "2": 2}, ["0", "1", "2"]),
        (["2", "10", ""], {"2": 2, "10": 10}, [str(number) for number in range(11)]),
        ([123456, 99], {"99": 0, "123456": 1}, ["99", "123456"]),
        (["dog", " cat"], {"cat": 0, "dog": 1}, ["cat", "dog"]),
        (["01", "02"], {"01": 0, "02": 1}, ["01", "02"]),
        (["10", "-2", "9.5"], {"-2": 0, "9.5": 1, "10": 2}, ["-2", "9.5", "10"]),
        ([True, "false", "TRUE"], {"False": 0, "True": 1}, ["False", "True"]),
        ([True, 0.0, "1"], {"0": 0, "1": 1, "True": 1}, ["0", "1"]),
        (["e\u0301", "\u00e9"], {"\u00e9": 0}, ["\u00e9"]),
        ([], {}, []),
        (["2" * 5000, "1"], {"1": 0, "2" * 5000: 1}, ["1", "2" * 5000]),
    ],
)
def test_classes_are_numbered_by_the_set_of_classes(values: list, numbers: dict, names: list[str]) -> None:
    assert number_classes(values) == (numbers, names)


@pytest.mark.parametrize("one", [1, 1.0, "1", "1.0", " 1.00", np.float32(1), decimal.Decimal("1.0")])
@pytest.mark.parametrize(
    "none", [None, NAN, -1, -1.0, "", " ", "-1", "-1.0", "nan", "NaN", "NA", "N/A", "null", "None", "<NA>"]
)
def test_one_class_has_one_spelling_and_so_has_none(one: object, none: object) -> None:
    assert number_classes([one, none, 0]) == ({"0": 0, "1": 1}, ["0", "1"]) and class_of(none) is None


@pytest.mark.parametrize("values", [["01", "1"], ["0.10", 0.1], ["1,0", "1"], [True, 2]])
def test_classes_that_may_be_one_are_refused(values: list) -> None:
    with pytest.raises(UserError, match="class-one-number|class-truth-mixed"):
        number_classes(values)


def names_of(store: RecordStore, label: str = "label") -> list[str | None]:
    """The name of each record's class."""
    names = store.label_names[label]
    return [names[number] if number >= 0 else None for number in store.labels[label].tolist()]


def write(path: Path, pictures, labels: object, names: list[str] | None = None) -> None:
    """A file whose records are called 0, 1, ..."""
    labels = labels if isinstance(labels, pa.Array) else pa.array(labels)
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    meta = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    rows = range(len(labels))
    table = pa.table({"image": [pictures.png() for _ in rows], "id": [f"{path.stem}{row}" for row in rows], "label": labels})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(meta), path)


@pytest.mark.parametrize("places", [("train-0", "train-1"), ("train", "validation")])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (([0, 1], ["cat", "dog"]), ([0, 1], ["dog", "cat"]), ["cat", "dog", "dog", "cat"]),
        (([0, 1], ["cat", "dog"]), ([0, 1], ["bird", "cat"]), ["cat", "dog", "bird", "cat"]),
        (([0, 1], ["cat", "dog"]), ([1, 0],), ["cat", "dog", "dog", "cat"]),
        (([0, 1], ["cat", "dog"]), (["dog", "bird"],), ["cat", "dog", "dog", "bird"]),
        ((["1", "dog"], ["cat", "dog"]), ([1.0, None],), ["dog", "dog", "dog", None]),
        (([0.0, NAN, None, -1.0], ["cat", "dog"]), ([True], ["cat", "dog"]), ["cat", None, None, None, "dog"]),
        (([0, 1],), (["0", "1", "cat"],), ["0", "1", "0", "1", "cat"]),
        (([0.0, None, 1.0],), ([1, 0],), ["0", None, "1", "1", "0"]),
        (([False, True],), ([0, 1],), ["0", "1", "0", "1"]),
        (([True, False, None],), ([True],), ["True", "False", None, "True"]),
        ((pa.array(["a", "b"]).dictionary_encode(),), (pa.array(["b"], pa.string_view()),), ["a", "b", "b"]),
        ((pa.nulls(2),), (["b"],), [None, None, "b"]),
        ((pa.array([0.1, 2.0], pa.float32()),), ([0.1],), ["0.1", "2", "0.1"]),
    ],
)
def test_every_file_means_its_own_classes(tmp_path: Path, pictures, places, first, second, expected: list) -> None:
    for place, content in zip(places, (first, second), strict=True):
        write(tmp_path / "in" / f"{place}.parquet", pictures, *content)
    assert names_of(RecordStore.open(import_records(tmp_path / "in", tmp_path / "s").path)) == expected


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ([([0], ["a", "b"]), ([0], ["b", "a"]), ([1],)], "train-2.*parquet-class-meaning"),
        ([([0], ["a"]), ([1], ["a"])], "'train/1' has label = 1, .* only 1 .*parquet-class-number"),
        ([([[0, 1]],)], "labels of the type list.* column label"),
        ([(["a"],), ([["a"]],)], "train-1.parquet, column label"),
    ],
)
def test_labels_that_no_file_explains_are_refused(tmp_path: Path, pictures, contents: list, said: str) -> None:
    for number, content in enumerate(contents):
        write(tmp_path / "in" / f"train-{number}.parquet", pictures, *content)
    with pytest.raises(UserError, match=said):
        import_records(tmp_path / "in", tmp_path / "s")
    if "column" in said:
        import_records(tmp_path / "in", tmp_path / "s", skip_broken=True)
        assert RecordStore.open(tmp_path / "s").labels == {}


@pytest.mark.parametrize("cells", list(itertools.permutations([["0.0", "1.0", ""], ["0", "nan"], ["1", "-1"]])))
def test_tables_write_numbers_as_they_like(tmp_path: Path, pictures, cells: tuple[list[str], ...]) -> None:
    tables = []
    for number, labels in enumerate(cells):
        files = [pictures.file(tmp_path / f"{number}{row}.png").name for row in range(len(labels))]
        rows = (f"{file},{label}" for file, label in zip(files, labels, strict=True))
        tables.append(tmp_path / f"{number}.csv")
        tables[-1].write_text("\n".join(["filepath,label", *rows]))
    store = RecordStore.open(import_records(tables, tmp_path / "s").path)
    expected = [{"0.0": "0", "1.0": "1"}.get(label, label if label in ("0", "1") else None) for label in sum(cells, [])]
    assert store.label_names == {"label": ["0", "1"]} and names_of(store) == expected
