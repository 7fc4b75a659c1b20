"""Folders, tables and Camelyon17: sources that are image files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.importers import ImportReport, detect, import_records
from dpfed.data.store.record import record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


def imported(source: Path, dest: Path, format: str, **options: object) -> tuple[ImportReport, RecordStore]:
    assert detect(source) == format
    report = import_records(source, dest, **options)
    assert report.format == format
    return report, RecordStore.open(dest)


def described(store: RecordStore, label: str = "label") -> dict[str, tuple[str | None, str]]:
    """id -> (name of the class, split)."""
    rows = np.arange(len(store))
    split = {row: name for name in ("train", "validation", "test") for row in store.split(name).tolist()}
    numbers = store.labels[label].tolist() if label in store.labels else [-1] * len(store)
    names = [store.label_names[label][number] if number >= 0 else None for number in numbers]
    return {id: (names[row], split[row]) for row, id in enumerate(store.ids(rows))}


def test_class_folders(tmp_path: Path, pictures) -> None:
    for name in ("dog/b.JPG", "dog/deep/a.png", "cat/1.jpg", "loose.png", ".hidden/x.png", "cat/.x.png", "cat/README.txt"):
        pictures.file(tmp_path / "in" / name)
    _, store = imported(tmp_path / "in", tmp_path / "s", "folder")
    assert described(store) == {
        "dog/b.JPG": ("dog", "train"),
        "dog/deep/a.png": ("dog", "train"),
        "cat/1.jpg": ("cat", "train"),
        "loose.png": (None, "train"),
    }


def test_flat_folder_has_no_labels(tmp_path: Path, pictures) -> None:
    for number in range(3):
        pictures.file(tmp_path / "in" / f"{number}.png")
    _, store = imported(tmp_path / "in", tmp_path / "s", "folder", size=8)
    assert store.labels == {} and store.kind == "image" and len(store) == 3


@pytest.mark.parametrize("name", ["val", "validation", "valid"])
def test_split_folders_as_in_imagenet(tmp_path: Path, pictures, name: str) -> None:
    for file in ("train/n01/n01_1.JPEG", "train/n02/n02_1.JPEG", f"{name}/n02/v1.JPEG", "test/t1.JPEG"):
        pictures.file(tmp_path / "in" / file)
    _, store = imported(tmp_path / "in", tmp_path / "s", "folder")
    assert described(store) == {
        "train/n01/n01_1.JPEG": ("n01", "train"),
        "train/n02/n02_1.JPEG": ("n02", "train"),
        f"{name}/n02/v1.JPEG": ("n02", "validation"),
        "test/t1.JPEG": (None, "test"),
    }


def test_torchvisions_imagenet_is_read_but_not_beside_archives(tmp_path: Path, pictures) -> None:
    root = tmp_path / "in"
    for file in ("train/n01/n01_1.JPEG", "val/n01/v1.JPEG"):
        pictures.file(root / file)
    for name in ("meta.bin", "ILSVRC2012_devkit_t12.tar.gz"):
        (root / name).write_bytes(b"nothing of a record")
    report, store = imported(root, tmp_path / "s", "folder")
    assert described(store) == {"train/n01/n01_1.JPEG": ("n01", "train"), "val/n01/v1.JPEG": ("n01", "validation")}
    assert report.passed_over == {"ILSVRC2012_devkit_t12.tar.gz": 1, "meta.bin": 1}
    (root / "ILSVRC2012_img_val.tar").touch()
    with pytest.raises(UserError, match="ILSVRC2012_img_val.tar.*import-lost-files"):
        imported(root, tmp_path / "again", "folder")


def write_table(path: Path, rows: list[dict[str, str]], delimiter: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("csv", "\t"), ("tsv", "\t"), ("csv", ";")])
def test_table_of_captions(tmp_path: Path, pictures, suffix: str, delimiter: str) -> None:
    for file in ("images/a.jpg", "images/b.jpg", "c.png"):
        pictures.file(tmp_path / "in" / file)
    rows = [
        {"filepath": "images/a.jpg", "title": "ein Hund, braun", "split": "", "label": "dog"},
        {"filepath": "images/b.jpg", "title": 'a "cat"', "split": "val", "label": ""},
        {"filepath": "./images/a.jpg", "title": "a dog", "split": "train", "label": "dog"},
        {"filepath": str(tmp_path / "in" / "c.png"), "title": "ça", "split": "test", "label": "cat"},
    ]
    _, store = imported(write_table(tmp_path / "in" / f"t.{suffix}", rows, delimiter), tmp_path / "s", "table", size=8)
    assert store.kind == "image-text"
    assert described(store) == {
        "images/a.jpg": ("dog", "train"),
        "images/b.jpg": (None, "validation"),
        "c.png": ("cat", "test"),
    }
    captions = dict(zip(store.ids([0, 1, 2]), store.captions([0, 1, 2]), strict=True))
    assert captions == {"images/a.jpg": ["ein Hund, braun", "a dog"], "images/b.jpg": ['a "cat"'], "c.png": ["ça"]}


def test_table_without_titles_or_with_missing_files(tmp_path: Path, pictures) -> None:
    pictures.file(tmp_path / "in" / "a.jpg")
    rows = [{"filepath": "a.jpg", "label": "3"}, {"filepath": "gone.jpg", "label": "1"}, {"filepath": "", "label": "1"}]
    table = write_table(tmp_path / "in" / "t.csv", rows, ",")
    with pytest.raises(UserError, match=r"2 of 3 .*gone\.jpg.*record-unreadable"):
        import_records(table, tmp_path / "s")
    report, store = imported(table, tmp_path / "s", "table", skip_broken=True)
    assert store.kind == "image" and store.labels["label"].tolist() == [3]
    assert [id for id, _ in report.skipped] == ["t.csv:4", "gone.jpg"]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"place": "a.jpg", "title": "x"}], "place, title; .*filepath.*table-no-file-column"),
        ([{"image": "a.jpg", "path": "b.jpg", "title": "x"}], "image and path; .*filepath.*table-unclear"),
        ([{"filepath": "a.jpg", "caption": "x", "text": "y"}], "caption and text; .*title.*table-unclear"),
        ([{"filepath": "a.jpg", "Title": "x", "title": "y"}], "Title and title; .*title.*table-unclear"),
        ([{"My Place": "a.jpg", "Title": "x"}], "My Place, Title; .*filepath.*table-no-file-column"),
        ([{"File Name": ""}], "no File Name"),
        ([{"filepath": "a.jpg", "Patient ID": "1"}, {"filepath": "a.jpg", "Patient ID": "2"}], "Patient ID.*table-disagrees"),
        ([{"filepath": "a.jpg", "unit": "Ann"}, {"filepath": "a.jpg", "unit": "Ben"}], "unit.*table-disagrees"),
        ([{"filepath": "a.jpg", "title": "x", "split": "trian"}], "trian.*table-split-unknown"),
        ([{"filepath": "a.jpg", "split": "train"}, {"filepath": "a.jpg", "split": "test"}], "a.jpg.*table-disagrees"),
    ],
)
def test_tables_that_cannot_be_meant_are_refused(tmp_path: Path, rows: list[dict[str, str]], named: str) -> None:
    with pytest.raises(UserError, match=named):
        import_records(write_table(tmp_path / "t.csv", rows, ","), tmp_path / "s")


@pytest.mark.parametrize(
    "file", ["filepath", "image", "image_path", "file", "path", "img", "filename", "file_name", " Image", "Image Path"]
)
@pytest.mark.parametrize("title", ["title", "caption", "captions", "text", "sentence", "description", "alt_text", "Alt"])
def test_other_usual_names_of_the_columns(tmp_path: Path, pictures, file: str, title: str) -> None:
    pictures.file(tmp_path / "a.jpg")
    table = write_table(tmp_path / "t.csv", [{file: "a.jpg", title: text} for text in ("a cat", "a dog")], ",")
    _, store = imported(table, tmp_path / "s", "table")
    assert store.ids([0]) == ["a.jpg"] and store.captions([0]) == [["a cat", "a dog"]] and store.units is None


@pytest.mark.parametrize(("column", "name"), [("unit", "unit"), ("person_id", "person"), ("patient_id", "patient")])
def test_units_of_a_table(tmp_path: Path, pictures, column: str, name: str) -> None:
    units = ["p1", "p2", " p1 ", ""]
    rows = [{"filepath": f"{row}.png", "title": "x", column: unit} for row, unit in enumerate(units)]
    for row in rows:
        pictures.file(tmp_path / row["filepath"])
    _, store = imported(write_table(tmp_path / "t.csv", rows, ","), tmp_path / "s", "table")
    assert store.unit_name == name
    assert store.units.tolist() == [record_key(unit) for unit in ("p1", "p2", "p1", "3.png")]


def write_camelyon(root: Path, pictures, rows: list[tuple[str, int, int, int, int, int, int]]) -> Path:
    """The metadata.csv of WILDS begins with an index column without a name."""
    root.mkdir()
    with (root / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"])
        for number, (patient, node, x, y, tumor, center, split) in enumerate(rows):
            writer.writerow([number, patient, node, x, y, tumor, 10 * center, center, split])
            name = f"patient_{patient}_node_{node}"
            pictures.file(root / "patches" / name / f"patch_{name}_x_{x}_y_{y}.png")
    return root


def test_camelyon17_of_wilds(tmp_path: Path, pictures) -> None:
    rows = [("004", 4, 3328, 21792, 1, 0, 0), ("004", 4, 3200, 22272, 0, 0, 1)]
    rows += [("020", 2, 1, 2, 1, 1, 0), ("042", 3, 5, 6, 0, 2, 1)]
    _, store = imported(write_camelyon(tmp_path / "in", pictures, rows), tmp_path / "s", "camelyon17", size=8)
    assert store.kind == "image"
    assert described(store, "tumor") == {
        "patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png": ("tumor", "train"),
        "patches/patient_004_node_4/patch_patient_004_node_4_x_3200_y_22272.png": ("normal", "validation"),
        "patches/patient_020_node_2/patch_patient_020_node_2_x_1_y_2.png": ("tumor", "validation"),
        "patches/patient_042_node_3/patch_patient_042_node_3_x_5_y_6.png": ("normal", "test"),
    }
    assert store.labels["center"].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_a_folder_with_a_file_of_captions_is_imported_with_them(tmp_path: Path, pictures, name: str) -> None:
    pictures.file(tmp_path / "set" / "train" / "a.jpg")
    (tmp_path / "set" / "train" / name).write_text("file_name,text\na.jpg,a cat\n")
    with pytest.raises(UserError, match=f"{name}.*import-lost-files"):
        import_records(tmp_path / "set", tmp_path / "store", "folder")
    assert not (tmp_path / "store").exists()
