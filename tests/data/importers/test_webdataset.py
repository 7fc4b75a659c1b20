"""WebDataset archives, written by hand in the layout that its readers expect."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers import detect, import_records
from dpfed.data.store.record import record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_lost_files import commands, run

Members = Sequence[tuple[str, bytes]]


def write(path: Path, members: Members, format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def by_hand(name: str, content: bytes) -> bytes:
    """One member of a ustar archive, from the description in POSIX."""
    header = bytearray(512)
    fields = [(0, name.encode()), (100, b"0000644\0"), (108, b"0000000\0"), (116, b"0000000\0")]
    fields += [(124, b"%011o\0" % len(content)), (136, b"00000000000\0"), (148, b" " * 8), (156, b"0")]
    fields += [(257, b"ustar\x0000")]
    for start, value in fields:
        header[start : start + len(value)] = value
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % 512)


def sample(key: str, pictures, caption: str | None = "a cat", **files: bytes) -> list[tuple[str, bytes]]:
    texts = [] if caption is None else [(f"{key}.txt", caption.encode())]
    return [(f"{key}.jpg", pictures.jpeg()), *texts, *((f"{key}.{name}", content) for name, content in files.items())]


def imported(source: Path, dest: Path, **options: object) -> RecordStore:
    assert detect(source) == "webdataset"
    import_records(source, dest, **options)
    return RecordStore.open(dest)


def captions(store: RecordStore) -> dict[str, list[str]]:
    rows = np.arange(len(store))
    return dict(zip(store.ids(rows), store.captions(rows), strict=True))


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_an_archive_of_images_and_captions(tmp_path: Path, pictures, format: int) -> None:
    name = f"{'deep' * 15}/{'ä' * 30}"  # 120 bytes: too long for the name field alone
    members = [*sample("000", pictures, "a cat\n\n another cat \n"), *sample(name, pictures, "ein Hund"), ("readme", b"?")]
    store = imported(write(tmp_path / "x.tar", members, format), tmp_path / "s")
    assert store.kind == "image-text" and store.units is None and store.labels == {} and store.name == "x"
    assert captions(store) == {"train/x/000": ["a cat", "another cat"], f"train/x/{name}": ["ein Hund"]}
    assert members[0][1] in (tmp_path / "s" / "records.arrow").read_bytes()  # the original file


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"caption": "a", "width": 3}, ["a"]),
        ({"captions": ["a", "b", "", None, "a"]}, ["a", "b"]),
        ({"text": "a", "title": "b"}, ["a", "b"]),
        (["a", "b"], ["a", "b"]),
        ("a", ["a"]),
    ],
)
def test_captions_in_json(tmp_path: Path, pictures, value: object, expected: list[str]) -> None:
    members = sample("0", pictures, caption=None, json=json.dumps(value).encode())
    assert captions(imported(write(tmp_path / "x.tar", members), tmp_path / "s")) == {"train/x/0": expected}


@pytest.mark.parametrize(("key", "name"), [("unit", "unit"), ("person_id", "person"), ("patient_id", "patient")])
def test_units_in_json(tmp_path: Path, pictures, key: str, name: str) -> None:
    values = [7, "7", None, "x"]
    members = [
        entry
        for number, value in enumerate(values)
        for entry in sample(str(number), pictures, json=json.dumps({key: value}).encode())
    ]
    store = imported(write(tmp_path / "x.tar", members), tmp_path / "s")
    assert store.unit_name == name
    assert store.units.tolist() == [record_key(unit) for unit in ("7", "7", "train/x/2", "x")]


@pytest.mark.parametrize(
    "names", [("train/0.tar", "val/0.tar"), ("train-0.tar", "valid-0.tar"), ("cc3m-train-0.tar", "cc3m-validation-0.tar")]
)
def test_folders_and_names_of_archives_give_the_split(tmp_path: Path, pictures, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / "in" / name, sample("0", pictures))
    store = imported(tmp_path / "in", tmp_path / "s")
    assert store.ids(store.split("validation")) == [f"validation/{Path(names[1]).stem}/0"]
    assert store.ids(store.split("train")) == [f"train/{Path(names[0]).stem}/0"]


def broken_reasons(source: Path, dest: Path) -> dict[str, str]:
    with pytest.raises(UserError, match="--skip-broken.*record-unreadable"):
        import_records(source, dest)
    assert not dest.exists()
    return dict(import_records(source, dest, skip_broken=True).skipped)


def test_samples_without_image_or_caption_are_counted_and_named(tmp_path: Path, pictures) -> None:
    members = (
        sample("ok", pictures) + [("text.txt", b"alone")] + sample("mute", pictures, " \n") + sample("none", pictures, None)
    )
    members += [*sample("two", pictures), ("two.png", pictures.png())]
    members += sample("json", pictures, json=b"{") + sample("latin", pictures, None, txt="ça".encode("latin-1"))
    members += [("rotten.jpg", b"?"), ("rotten.txt", b"a")]
    reasons = broken_reasons(write(tmp_path / "x.tar", members), tmp_path / "s")
    expected = {"text": "no image", "mute": "no caption", "none": "no caption", "two": "several images"}
    expected |= {"json": "its .json cannot be read", "latin": "its .txt cannot be read", "rotten": "not an image file"}
    assert reasons == {f"train/x/{key}": reason for key, reason in expected.items()}


def blocks(members: Members) -> list[int]:
    """Where each member begins."""
    return np.cumsum([0, *[512 + -(-len(content) // 512) * 512 for _, content in members]]).tolist()


@pytest.mark.parametrize("where", ["in a file", "in a header", "between files", "at a header that is overwritten"])
def test_an_archive_cut_off_is_named_and_keeps_what_is_whole(tmp_path: Path, pictures, where: str) -> None:
    members = [entry for key in "abcd" for entry in sample(key, pictures)]
    content = bytearray(write(tmp_path / "in" / "0.tar", members, tarfile.USTAR_FORMAT).read_bytes())
    write(tmp_path / "in" / "1.tar", sample("z", pictures))
    start = blocks(members)[5]  # c.txt, whose image is still there
    cut = {"in a file": start + 514, "in a header": start + 100, "between files": start}.get(where)
    if cut is None:
        content[start : start + 512] = b"\x07" * 512
    (tmp_path / "in" / "0.tar").write_bytes(content[:cut])
    reasons = broken_reasons(tmp_path / "in", tmp_path / "s")
    assert list(reasons) == ["train/0"] and "2 samples" in reasons["train/0"]
    assert set(captions(RecordStore.open(tmp_path / "s"))) == {"train/0/a", "train/0/b", "train/1/z"}


@pytest.mark.parametrize("extension", sorted(EXTENSIONS - {".jp2"}))
def test_the_images_of_all_importers_are_read(tmp_path: Path, pictures, extension: str) -> None:
    formats = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".jfif": "JPEG", ".jpe": "JPEG"}
    formats |= dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM")
    name = formats.get(extension, extension[1:].upper())
    image = pictures.encoded(pictures.array(channels=1 if extension == ".pgm" else 3), name)
    store = imported(write(tmp_path / "x.tar", [(f"0{extension}", image), ("0.txt", b"a cat")]), tmp_path / "s")
    assert captions(store) == {"train/x/0": ["a cat"]}


def test_samples_that_are_torn_apart_are_refused(tmp_path: Path, pictures) -> None:
    members = sample("a", pictures) + sample("b", pictures)
    with pytest.raises(UserError, match="'a'.*tar-sample-torn"):
        import_records(write(tmp_path / "x.tar", members[::2] + members[1::2]), tmp_path / "s")


@pytest.mark.parametrize("between", [b"", bytes(512), bytes(1024), bytes(20_480)])
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".TAR.XZ"])
def test_what_stands_behind_the_end_of_an_archive_is_read(tmp_path: Path, pictures, ending: str, between: bytes) -> None:
    """Two archives in one file, or a block of zeros among the members; compressed as a whole, or one after the other."""
    first = b"".join(by_hand(name, content) for name, content in sample("a", pictures) + sample("b", pictures)) + between
    second = write(tmp_path / "second", [("c.jpg", pictures.png() + bytes(7)), ("c.txt", b"c")]).read_bytes()
    packed = {"ar": bytes, "gz": gzip.compress, "z2": bz2.compress, "XZ": lzma.compress}[ending[-2:]]
    for number, content in enumerate((packed(first + second), packed(first) + packed(second), first + second)):
        source = tmp_path / f"x{ending}"
        source.write_bytes(content)
        assert set(captions(imported(source, tmp_path / f"s{number}"))) == {"train/x/a", "train/x/b", "train/x/c"}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_an_archive_that_turns_into_else_is_refused_with_place(tmp_path: Path, pictures, ending: str) -> None:
    whole = write(tmp_path / "x.tar", sample("a", pictures) + sample("b", pictures)).read_bytes()
    junk = whole + b"more" * 300
    (tmp_path / f"x{ending}").write_bytes(junk if ending == ".tar" else gzip.compress(junk))
    reason = broken_reasons(tmp_path / f"x{ending}", tmp_path / "s")["train/x"]
    assert reason == f"archive is cut off or damaged (after 1 samples, at byte {len(whole):,})"


def test_a_compressed_archive_that_is_cut_off_is_refused(tmp_path: Path, pictures) -> None:
    whole = gzip.compress(write(tmp_path / "x.tar", sample("a", pictures) + sample("b", pictures)).read_bytes())
    (tmp_path / "x.tgz").write_bytes(whole)
    for end in (len(whole) // 2, len(whole) - 4):
        (tmp_path / "x.tgz").write_bytes(whole[:end])
        with pytest.raises(UserError, match="archive cannot be read.*record-unreadable|tar-no-samples"):
            import_records(tmp_path / "x.tgz", tmp_path / "s")


@pytest.mark.parametrize("key", ["label", "cls", "class"])
@pytest.mark.parametrize(("values", "names"), [([1, 0.0, None], ["1", "0", None]), (["cat", " dog", -1], ["cat", "dog", None])])
def test_classes_in_json(tmp_path: Path, pictures, key: str, values: list, names: list) -> None:
    members = [
        entry
        for number, value in enumerate(values)
        for entry in sample(str(number), pictures, None, json=json.dumps({key: value, "labels": [1]}).encode())
    ]
    store = imported(write(tmp_path / "x.tar", members), tmp_path / "s")
    assert [[*store.label_names["label"], None][number] for number in store.labels["label"].tolist()] == names


def test_folders_may_repeat_the_split_of_their_archive(tmp_path: Path, pictures) -> None:
    for split in ("train", "val", "test"):
        write(tmp_path / "in" / f"{split}.tar", sample(f"{split}/a", pictures))
    assert import_records(tmp_path / "in", tmp_path / "s").counts == {"train": 1, "validation": 1, "test": 1}
    write(tmp_path / "in" / "train.tar", [*sample("train/a", pictures), *sample("val/b", pictures)])
    with pytest.raises(UserError, match=r"train\.tar: train, train\.tar: val\).*tar-several-splits"):
        import_records(tmp_path / "in", tmp_path / "t")


@pytest.mark.parametrize("folder", ["test", "my/val"])
def test_an_archive_of_held_out_images_is_not_trained_on_unless_the_command_says_so(
    tmp_path: Path, pictures, folder: str
) -> None:
    source = write(tmp_path / "x.tar", sample(f"{folder}/a", pictures))
    with pytest.raises(UserError, match=rf"x\.tar: {folder}\).*tar-folder-held-out") as raised:
        import_records(source, tmp_path / "s")
    assert len(run(commands(str(raised.value))[0], tmp_path / "s").split("train")) == 1
    split = "test" if folder == "test" else "validation"
    write(tmp_path / "in" / f"{split}.tar", sample(f"{folder}/a", pictures))
    write(tmp_path / "in" / "train.tar", sample("b", pictures))
    assert import_records(tmp_path / "in", tmp_path / "t").counts[split] == 1
    write(tmp_path / "in" / "train.tar", sample(f"{folder}/b", pictures))
    with pytest.raises(UserError, match=rf"train\.tar: {folder}\).*tar-folder-held-out"):
        import_records(tmp_path / "in", tmp_path / "u")
