"""Folders of images with a text of captions beside each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpfed.data.importers import detect, import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_lost_files import commands, run


def folder(root: Path, pictures, captions: dict[str, str | None]) -> Path:
    for name, text in captions.items():
        image = pictures.file(root / name)
        if text is not None:
            image.with_suffix(".txt").write_text(text, encoding="utf-8")
    return root


def captions_of(store: RecordStore) -> dict[str, tuple[str, ...]]:
    rows = np.arange(len(store))
    return dict(zip(store.ids(rows), map(tuple, store.captions(rows)), strict=True))


def test_each_line_is_a_caption(tmp_path: Path, pictures) -> None:
    source = folder(tmp_path / "in", pictures, {"a.png": "\ufeffa cat\r\n a dog \n\na cat\n", "deep/b.png": "Füchse"})
    for file in ("a.json", "deep/b.json"):
        (source / file).write_text("{}")
    (source / "README.md").write_text("about")
    assert detect(source) == "captioned-folder"
    report = import_records(source, tmp_path / "s")
    store = RecordStore.open(tmp_path / "s")
    assert captions_of(store) == {"a.png": ("a cat", "a dog"), "deep/b.png": ("Füchse",)}
    assert report.passed_over["*.json beside an image and its .txt"] == 2


def test_folders_are_splits_and_classes(tmp_path: Path, pictures) -> None:
    places = {"train/cat/a.png": "a", "train/dog/b.png": "b", "val/cat/c.png": "c"}
    import_records(folder(tmp_path / "in", pictures, places), tmp_path / "s")
    store = RecordStore.open(tmp_path / "s")
    assert store.label_names == {"label": ["cat", "dog"]}
    assert store.count("train") == 2 and store.count("validation") == 1


def test_images_without_words_are_counted_and_refused(tmp_path: Path, pictures) -> None:
    captions = {"a.png": "a", "b.png": "b", "c.png": None, "d.png": " \n", "e.png": "a" * 2**21, "f.png": "f"}
    source = folder(tmp_path / "in", pictures, captions)
    (source / "f.txt").write_bytes("ça".encode("latin-1"))
    (source / "g.txt").write_text("of no image")
    with pytest.raises(UserError, match=r"g\.txt"):
        import_records(source, tmp_path / "s")
    (source / "g.txt").unlink()
    with pytest.raises(UserError) as refused:
        import_records(source, tmp_path / "s")
    for reason in ("no .txt of the same name beside it", "its .txt is empty", "larger than 1 MiB", "its .txt is not UTF-8"):
        assert reason in str(refused.value)
    import_records(source, tmp_path / "s", skip_broken=True)
    assert set(captions_of(RecordStore.open(tmp_path / "s"))) == {"a.png", "b.png"}


def test_boxes_of_a_detector_are_no_captions(tmp_path: Path, pictures) -> None:
    source = folder(tmp_path / "in", pictures, {f"{n}.png": "0 0.5 0.5 0.25 0.125\n" for n in range(3)})
    assert detect(source) == "folder"
    with pytest.raises(UserError, match=r"\.txt files are not read") as refused:
        import_records(source, tmp_path / "s")
    assert "captioned-folder" not in str(refused.value)
    with pytest.raises(UserError, match=r"0\.txt .*captioned-folder-numbers") as refused:
        import_records(source, tmp_path / "s", format="captioned-folder")
    assert len(run(commands(str(refused.value))[0], tmp_path / "s")) == 3
    for text in source.glob("*.txt"):
        text.unlink()
    with pytest.raises(UserError, match=r"no image .* has a \.txt .*captioned-folder-none"):
        import_records(source, tmp_path / "t", format="captioned-folder")


def test_a_folder_with_one_table_is_that_table(tmp_path: Path, pictures) -> None:
    source = folder(tmp_path / "in", pictures, {"images/a.png": None, "images/b.png": None})
    (source / "pairs.csv").write_text("image,caption\nimages/a.png,a cat\nimages/b.png,a dog\n")
    assert detect(source) == "table"
    import_records(source, tmp_path / "s")
    assert captions_of(RecordStore.open(tmp_path / "s")) == {"images/a.png": ("a cat",), "images/b.png": ("a dog",)}
    folder(source, pictures, {f"images/{n}.png": None for n in range(3)})  # most images have no row: which way is meant?
    assert detect(source) == "folder"
    with pytest.raises(UserError, match=r"pairs\.csv DEST --format table"):
        import_records(source, tmp_path / "t")
