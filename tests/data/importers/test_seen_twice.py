"""What is one thing to people and two in the store, or the other way round, is said at the import."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfed.data.decoding import holds_several
from dpfed.data.importers import import_records
from dpfed.data.importers.classes import alike
from dpfed.data.store.writing import StoreWriter


def frames(pictures, format: str, count: int, **options) -> bytes:
    first, *others = (Image.fromarray(pictures.array()) for _ in range(count))
    buffer = io.BytesIO()
    more = {"save_all": True, "append_images": others} if count > 1 else {}
    first.save(buffer, format=format, **more, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP", "PNG"])
def test_files_of_several_pictures_are_counted(tmp_path: Path, pictures, format: str, dpfed) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number, count in enumerate((1, 3, 2)):
        (source / f"{number}.{format.lower()}").write_bytes(frames(pictures, format, count))
    (source / "photo.jpg").write_bytes(pictures.jpeg())
    code, said, error = dpfed("data", "import", source, tmp_path / "store")
    assert code == 0 and "Files with several pictures (2): the first picture of each is used." in said, error
    # The advice: unpacked, all are there, and nothing is left to be said.
    for file in sorted(source.glob("[12].*")):
        with Image.open(file) as opened:
            for page in range(opened.n_frames):
                opened.seek(page)
                opened.convert("RGB").save(source / f"{file.stem}-{page}.png")
        file.unlink()
    report = import_records(source, tmp_path / "again")
    assert (report.several, report.counts["train"]) == (0, 7)


def test_a_photograph_with_a_small_one_in_it_is_one_picture(pictures) -> None:
    assert not holds_several(frames(pictures, "MPO", 2)) and not holds_several(pictures.array())


def test_training_pictures_among_held_out_ones_are_counted(tmp_path: Path, pictures, dpfed) -> None:
    for split in ("train", "test"):
        for name in ("a/0.png", "b/1.png", "b/2.png"):
            pictures.file(tmp_path / "in" / split / name)
    for name in ("0", "1"):
        shutil.copy(tmp_path / "in/train/a/0.png", tmp_path / f"in/test/a/copy-{name}.png")
    with Image.open(tmp_path / "in/train/b/1.png") as opened:  # another file of the same pixels
        opened.save(tmp_path / "in/test/b/copy.bmp")
    shutil.copy(tmp_path / "in/train/b/2.png", tmp_path / "in/train/b/again.png")
    code, said, error = dpfed("data", "import", tmp_path / "in", tmp_path / "store")
    assert code == 0 and "Held-out records with the picture of a training record: 2." in said, error
    assert "Training records with the picture of another training record: 1." in said
    report = import_records(tmp_path / "in", tmp_path / "squares", size=12)
    assert (report.shared, report.repeated) == (3, 1)
    for copy in (tmp_path / "in").rglob("copy*"):
        copy.unlink()
    (tmp_path / "in/train/b/again.png").unlink()
    report = import_records(tmp_path / "in", tmp_path / "clean")
    assert (report.shared, report.repeated) == (0, 0)


def test_copies_are_counted_as_an_oracle_counts_them(tmp_path: Path, pictures) -> None:
    random, shown = np.random.default_rng(2), [pictures.png() for _ in range(20)]
    from dpfed.data.store.record import RecordInput

    drawn = [(int(random.integers(20)), ("train", "validation", "test")[int(random.integers(3))]) for _ in range(60)]
    with StoreWriter(tmp_path / "store", name="x", kind="image") as writer:
        for number, (picture, split) in enumerate(drawn):
            writer.add(RecordInput(id=str(number), image=shown[picture], split=split))
    training = [picture for picture, split in drawn if split == "train"]
    assert writer.repeated == len(training) - len(set(training))
    assert writer.shared == sum(split != "train" and picture in training for picture, split in drawn)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Cat", "cat", "dog"], ["Cat", "cat"]),
        ([" dog", "dog", "big dog", "big  dog"], [" dog", "dog", "big dog", "big  dog"]),
        (["é", "e\u0301", "e"], ["é", "e\u0301"]),
        (["0", "1", "10"], []),
    ],
)
def test_classes_with_nearly_one_name(names: list[str], expected: list[str]) -> None:
    assert alike(names) == expected


def test_classes_with_nearly_one_name_are_named(tmp_path: Path, pictures, dpfed) -> None:
    for name in ("Cat/0.png", "cat/1.png", "dog/2.png"):
        pictures.file(tmp_path / "in" / name)
    code, said, error = dpfed("data", "import", tmp_path / "in", tmp_path / "store")
    assert code == 0 and "Classes of label with almost the same name: 'Cat', 'cat'." in said, error


@pytest.mark.parametrize("name", ["@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found", "__MACOSX"])
def test_folders_of_a_drive_are_no_classes(tmp_path: Path, pictures, name: str) -> None:
    for file in ("cat/0.png", "dog/1.png", f"{name}/0.png", f"cat/{name}/0.png"):
        pictures.file(tmp_path / "in" / file)
    report = import_records(tmp_path / "in", tmp_path / "store")
    assert report.counts["train"] == 2 and report.passed_over == {name: 2}
