"""Words that stand for an empty cell are read by one rule in every format, whatever the cell is for, and are counted aloud."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import import_records
from dpfed.data.importers.classes import class_of, without_class
from dpfed.data.importers.empty_cells import EMPTY
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_lost_files import archive

NAN = float("nan")
ROWS = [("a cat", "cat"), ("nan", "nan"), ("a dog", "dog"), ("None", "None"), ("nan", "-1"), ("a nan", "cat")]


def as_csv(root: Path, pictures) -> Path:
    lines = [f"{pictures.file(root / f'{n}.png').name},{title},{label}" for n, (title, label) in enumerate(ROWS)]
    (root / "t.csv").write_text("\n".join(["filepath,title,label", *lines]))
    return root / "t.csv"


def as_json_lines(root: Path, pictures) -> Path:
    """With real NaN, as Python writes it."""
    cells = {"nan": NAN}
    lines = [
        json.dumps({"filepath": pictures.file(root / f"{n}.png").name, "title": cells.get(title, title), "label": label})
        for n, (title, label) in enumerate(ROWS)
    ]
    (root / "t.jsonl").write_text("\n".join(lines))
    return root / "t.jsonl"


def as_parquet(root: Path, pictures) -> Path:
    titles, labels = zip(*ROWS, strict=True)
    table = pa.table({"image": [pictures.png() for _ in ROWS], "caption": titles, "label": labels})
    root.mkdir(parents=True)
    pq.write_table(table, root / "train.parquet")
    return root / "train.parquet"


def as_archive(root: Path, pictures) -> Path:
    members = []
    for n, (title, label) in enumerate(ROWS):
        members += [(f"{n}.png", pictures.png()), (f"{n}.txt", title.encode()), (f"{n}.cls", label.encode())]
    return archive(root / "train.tar", members)


FORMS = [as_csv, as_json_lines, as_parquet, as_archive]


@pytest.mark.parametrize("form", FORMS)
def test_such_words_are_no_captions_nor_classes_and_are_counted(tmp_path: Path, pictures, form) -> None:
    source, said = form(tmp_path / "in", pictures), []
    report = import_records(source, tmp_path / "s", skip_broken=True, say=said.append)
    store = RecordStore.open(report.path)
    assert Counter(sum(store.captions(range(len(store))), [])) == {"a cat": 1, "a dog": 1, "a nan": 1}
    assert store.label_names == {"label": ["cat", "dog"]}
    assert said == [
        "label: '-1' (1), 'None' (1), 'nan' (1) count as no class; if such a word names a class, rename the class.",
        "captions: 'nan' (2), 'None' (1) count as empty; if such a word is a real caption, reword it.",
    ]
    assert Counter(reason for _, reason in report.skipped) == {
        "no caption but 'nan', which stands for an empty cell": 2,
        "no caption but 'None', which stands for an empty cell": 1,
    }
    said.clear()
    with pytest.raises(UserError, match="no caption but 'nan'.*record-unreadable"):
        import_records(source, tmp_path / "refused", say=said.append)
    assert said[1].startswith("captions: 'nan' (2)")


@pytest.mark.parametrize("word", sorted(EMPTY))
def test_a_word_that_is_no_class_is_no_caption_either(tmp_path: Path, pictures, word: str) -> None:
    assert class_of(word) is None and without_class("label", {word: 2}).startswith(f"label: {word!r} (2) count")
    members = [("0.png", pictures.png()), ("0.json", json.dumps({"caption": ["a cat", f" {word} "]}).encode())]
    import_records(archive(tmp_path / "x.tar", members), tmp_path / "s")
    assert RecordStore.open(tmp_path / "s").captions([0]) == [["a cat"]]


def test_a_missing_cell_is_no_word() -> None:
    assert without_class("label", {None: 3, NAN: 2, "": 1, "cat": 9}) == ""
    said = "label: '-1' (3) count as no class; if such a word names a class, rename the class."
    assert without_class("label", {-1: 2, "-1": 1}) == said


def test_a_unit_of_such_a_name_stays_one_unit_and_is_named(tmp_path: Path, pictures) -> None:
    files = [pictures.file(tmp_path / f"{n}.png").name for n in range(5)]
    people = ["nan", "nan", "ann", "nan", ""]
    rows = [f"{file},{person}" for file, person in zip(files, people, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["filepath,person_id", *rows]))
    said: list[str] = []
    report = import_records(tmp_path / "t.csv", tmp_path / "s", say=said.append)
    assert said == [
        "person: each of the words 'nan' (3) counts as the name of one person; leave these cells empty if they name no person."
    ]
    assert RecordStore.open(report.path).training_units == 3


def test_a_record_named_by_content_ignores_such_a_caption(tmp_path: Path, pictures) -> None:
    image = pictures.png()
    for name, captions in {"with": ["a cat", "nan"], "without": ["a cat"]}.items():
        pq.write_table(pa.table({"image": [image], "captions": [captions]}), tmp_path / f"{name}.parquet")
        import_records(tmp_path / f"{name}.parquet", tmp_path / f"s-{name}")
    assert RecordStore.open(tmp_path / "s-with").ids([0]) == RecordStore.open(tmp_path / "s-without").ids([0])
