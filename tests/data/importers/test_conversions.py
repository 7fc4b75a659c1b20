"""What is not read as it is: the refusal names the case, and its commands, carried out, import what is there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import dpfed
from dpfed.data.importers import import_records
from dpfed.data.importers.conversions import conversion
from dpfed.data.importers.importing import Access
from dpfed.data.importers.tfrecords import convert
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_classes import names_of
from tests.data.importers.test_folder_splits import found, tree
from tests.data.importers.test_lost_files import archive, commands, refusal, run, special


def advice(message: str, number: int = 0) -> str:
    """One of the commands of a message."""
    return [part for part in message.split("`")[1::2] if " " in part][number]


def run_advice(command: str, dest: Path) -> RecordStore | None:
    """Does what a message says, in a shell, in a folder of its own; the import itself, which comes last, in this process."""
    folder = dest.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    before, _, imported = command.partition(" && dpfed data import ")
    done = subprocess.run(before, shell=True, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return run(f"dpfed data import {imported}", dest) if imported else None


def captions_of(store: RecordStore) -> list[str]:
    return sorted(sum(store.captions(np.arange(len(store))), []))


def img2dataset(root: Path, pictures, shards: tuple[int, ...] = (0, 1)) -> Path:
    """As img2dataset writes its output format ``files``."""
    for shard in shards:
        for number in range(2):
            key = root / f"{shard:05d}" / f"{10_000 * shard + number:09d}.jpg"
            pictures.file(key)
            key.with_suffix(".txt").write_text(f"about {shard} {number}")
            key.with_suffix(".json").write_text(json.dumps({"caption": f"about {shard} {number}", "url": "x"}))
        pq.write_table(pa.table({"url": ["x"], "caption": ["about"]}), root / f"{shard:05d}.parquet")
        (root / f"{shard:05d}_stats.json").write_text("{}")
    return root


class TestShardsAsFolders:
    """Images with texts of their names beside them."""

    @pytest.mark.parametrize("shards", [(0, 1), (7,)])
    @pytest.mark.parametrize("figures", [True, False])
    def test_numbers_of_shards_are_no_classes(self, tmp_path: Path, pictures, shards, figures: bool) -> None:
        source, said = img2dataset(tmp_path / "in", pictures, shards), []
        if not figures:
            for file in source.glob("*.*"):
                file.unlink()
        import_records(source, tmp_path / "s", format="folder", skip_broken=True, say=said.append)
        store = RecordStore.open(tmp_path / "s")
        assert store.label_names == {} and len(store) == 2 * len(shards)
        note = ["Folders that are numbered shards do not count as classes: 00000, 00001."]
        assert said == (note if len(shards) > 1 else [])  # one folder that holds everything is no class anyway

    @pytest.mark.parametrize("file", ["00000_00001.png", "x.png", "00000.png", "0.png", "10000.png"])
    def test_classes_may_have_numbers_for_names(self, tmp_path: Path, pictures, file: str) -> None:
        for name in ("00000", "00001"):
            pictures.file(tmp_path / "in" / name / file)
        import_records(tmp_path / "in", tmp_path / "s")
        assert RecordStore.open(tmp_path / "s").label_names == {"label": ["00000", "00001"]}

    @pytest.mark.parametrize("options", [{}, {"format": "folder"}, {"skip_broken": True}])
    def test_the_commands_import_the_captions(self, tmp_path: Path, pictures, options: dict) -> None:
        source = img2dataset(tmp_path / "a 'folder'", pictures)
        for text in source.rglob("*.txt"):
            text.unlink()  # the captions are in the JSON files
        said = refusal(source, **options)
        store = run_advice(advice(said), tmp_path / "s")
        assert captions_of(store) == ["about 0 0", "about 0 1", "about 1 0", "about 1 1"]
        assert len(run(commands(said)[-1], tmp_path / "alone")) == 4

    @pytest.mark.parametrize("layout", ["{}.png", "train/{}.png test/{}.png", "train/a/{}.png val/b/c/{}.png"])
    def test_every_split_is_packed_by_itself(self, tmp_path: Path, pictures, layout: str) -> None:
        source = tmp_path / "in"
        for place in layout.split():
            for name in ("0", "0-1", "00"):  # whose order depends on the language of the machine
                image = pictures.file(source / place.format(name))
                image.with_suffix(".json").write_text(json.dumps({"caption": f"about {name}"}))
        store = run_advice(advice(refusal(source)), tmp_path / "s")
        other = {"{}.png": 0}.get(layout, 3)
        assert store.count("train") == 3 and store.count("test") + store.count("validation") == other
        assert captions_of(store) == sorted(["about 0", "about 0-1", "about 00"] * (1 + bool(other)))


def test_an_archive_with_links_is_written_anew(tmp_path: Path, pictures) -> None:
    members = [("0.png", pictures.png()), ("0.txt", b"a cat"), (special("1.png", tarfile.SYMTYPE, "0.png"), b"")]
    members += [("1.txt", b"a dog"), (special("2.png", tarfile.LNKTYPE, "0.png"), b""), ("2.txt", b"a bird")]
    source = archive(tmp_path / "x.tar", members)
    said = refusal(source)
    assert "--format folder" not in said
    assert run_advice(advice(said), tmp_path / "s") is None
    store = RecordStore.open(import_records(tmp_path / "x.tar-without-links.tar", tmp_path / "s").path)
    assert captions_of(store) == ["a bird", "a cat", "a dog"] and len(set(store.encoded(np.arange(3)))) == 1


def test_a_link_out_of_an_archive_is_not_followed_by_its_advice(tmp_path: Path, pictures) -> None:
    secret = pictures.file(tmp_path / "secret.png")
    (tmp_path / "data").mkdir()
    source = archive(
        tmp_path / "data" / "x.tar", [("0.png", pictures.png()), (special("1.png", tarfile.SYMTYPE, str(secret)), b"")]
    )
    with pytest.raises(AssertionError, match="outside|absolute"):
        run_advice(advice(refusal(source)), tmp_path / "s")
    assert not (tmp_path / "data" / "x.tar-without-links.tar").exists()


def test_unlabelled_pictures_beside_classes_are_moved_away(tmp_path: Path, pictures) -> None:
    """Kaggle's Intel scenes: ``--splits 0`` would make the splits the classes."""
    source = tree(tmp_path / "in", pictures, *(f"seg_{one}/seg_{one}/{name}" for one in ("train", "test") for name in "ab"))
    pictures.file(source / "seg_pred" / "seg_pred" / "0.png")
    said = refusal(source)
    assert f"move it out of {source}" in said and "--splits" not in said
    (source / "seg_pred").rename(tmp_path / "seg_pred")
    import_records(source, tmp_path / "s")
    assert set(found(tmp_path / "s").values()) == {(split, name) for split in ("train", "test") for name in "ab"}


COCO = {
    "images": [{"id": 7, "file_name": "images/0.png"}, {"id": 8, "file_name": "1.png"}],
    "annotations": [{"image_id": 7, "caption": "a cat"}, {"image_id": 8, "caption": "a dog"}],
}
ENTRIES = [{"image": "images/0.png", "caption": "a cat"}, {"image": "images/1.png", "caption": "a dog"}]


@pytest.mark.parametrize("content", [json.dumps(COCO), json.dumps(ENTRIES), "\n".join(map(json.dumps, ENTRIES))])
def test_a_json_file_that_says_what_images_show_is_read(tmp_path: Path, pictures, content: str) -> None:
    source = tree(tmp_path / "in", pictures, "images").joinpath("captions.json")
    for number in range(2):
        pictures.file(source.parent / "images" / f"{number}.png")
    source.write_text(content)
    store = run(commands(refusal(source.parent))[0], tmp_path / "s")
    assert captions_of(store) == ["a cat", "a dog"]
    assert captions_of(RecordStore.open(import_records(source, tmp_path / "t").path)) == ["a cat", "a dog"]


@pytest.mark.parametrize("names", [("a", "b"), ("train", "val")])
def test_several_json_files_that_say_what_images_show_are_read(tmp_path: Path, pictures, names: tuple[str, str]) -> None:
    source = tree(tmp_path / "in", pictures, "images").joinpath("captions.json").parent
    for number, name in enumerate(names):
        pictures.file(source / "images" / f"{number}.png")
        (source / f"{name}.json").write_text(json.dumps([ENTRIES[number]]))
    assert captions_of(run(commands(refusal(source))[0], tmp_path / "s")) == ["a cat", "a dog"]


@pytest.mark.parametrize(
    ("content", "code"),
    [([1, 2], "import-unknown-data"), ([*ENTRIES, 3], "import-unknown-data"), ([{"a": 1}], "table-no-file-column")],
)
def test_an_array_of_something_else_is_refused(tmp_path: Path, content: list, code: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=code):
        import_records(tmp_path / "x.json", tmp_path / "s")
    with pytest.raises(UserError, match="table-json-array|table-no-file-column"):
        import_records(tmp_path / "x.json", tmp_path / "s", format="table")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"0.png": "a cat", "1.png": ["a dog"]}, "file names and captions"),
        ({"image": {"0": "0.png", "1": "1.png"}, "caption": {"0": "a cat", "1": "a dog"}}, "JSON of columns"),
        ({"0.png": {"caption": "a cat"}, "1.png": {"caption": "a dog", "id": 3}}, "file names, each with its fields"),
    ],
)
def test_other_json_is_named_and_converted(tmp_path: Path, pictures, content: dict, said: str) -> None:
    for number in range(2):
        pictures.file(tmp_path / f"{number}.png")
    (tmp_path / "my captions.json").write_text(f"\ufeff{json.dumps(content)}", encoding="utf-8")
    (tmp_path / "my captions.jsonl").write_text("of the user")
    message = refusal(tmp_path / "my captions.json")
    assert said in message and "[import-convert]" in message
    assert captions_of(run_advice(advice(message, -1), tmp_path / "s")) == ["a cat", "a dog"]
    assert (tmp_path / "my captions.jsonl").read_text() == "of the user"


def saved(folder: Path, pictures, rows: int, kind: str = "stream") -> None:
    """As ``save_to_disk`` of Hugging Face's datasets writes one."""
    folder.mkdir(parents=True)
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    images = pa.array(
        [{"bytes": pictures.png(), "path": None} for _ in range(rows)], pa.struct([("bytes", "binary"), ("path", "string")])
    )
    table = pa.table({"image": images, "label": [row % 2 for row in range(rows)]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    writer = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with writer(str(folder / "data-00000-of-00001.arrow"), table.schema) as content:
        content.write_table(table)
    for name in ("state.json", "dataset_info.json"):
        (folder / name).write_text("{}")


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_one_arrow_file_is_converted_alone(tmp_path: Path, pictures, kind: str) -> None:
    for name, rows in (("my set", 2), ("my set/other", 3)):
        saved(tmp_path / name, pictures, rows, kind)
    message = refusal(tmp_path / "my set" / "data-00000-of-00001.arrow")
    assert len(run_advice(advice(message), tmp_path / "s")) == 2


@pytest.mark.parametrize("kind", ["stream", "file"])
@pytest.mark.parametrize("splits", [("",), ("train", "test")])
def test_what_save_to_disk_wrote_is_converted(tmp_path: Path, pictures, splits: tuple[str, ...], kind: str) -> None:
    for rows, split in enumerate(splits, start=3):
        saved(tmp_path / "my set" / split, pictures, rows, kind)
    if len(splits) > 1:
        (tmp_path / "my set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    message = refusal(tmp_path / "my set")
    assert "save_to_disk" in message and "[import-convert]" in message and len(message) < 900
    assert len(message) < 1200  # a longer one is shortened, and its command would not work; a set may have a thousand files
    store = run_advice(advice(message), tmp_path / "s")
    assert [store.count(split) for split in ("train", "test")] == [3, 4 if len(splits) > 1 else 0]
    assert set(names_of(store)) == {"cat", "dog"}


def packaged(root: Path, rows: str, monkeypatch) -> None:
    """Installs a package tfrecord that reads these rows from each file; `path` is the file."""
    (root / "tfrecord").mkdir(parents=True)
    (root / "tfrecord" / "__init__.py").touch()
    (root / "tfrecord" / "reader.py").write_text(
        f"from numpy import array as n\n\ndef tfrecord_loader(path, index):\n    return iter({rows})\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(Path(dpfed.__file__).parents[1])]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["train-0.tfrecord", "train-1.tfrecord", "my test.tfrecord", "val-0.tfrec", "extra.tfrecord"], [2, 1, 1]),
        (["train/0.tfrecord", "test/0.tfrecord", "test/1.tfrecord"], [1, 0, 2]),
        (["val-0.tfrecord", "test-0.tfrecord"], [0, 1, 1]),
        (["a.tfrecord", "b.tfrecord"], [2, 0, 0]),
    ],
)
def test_the_commands_convert_the_tfrecords_of_every_split(tmp_path: Path, pictures, names, counts, monkeypatch) -> None:
    packaged(tmp_path / "packages", "[{'image': %r, 'caption': path.encode()}]" % pictures.png(), monkeypatch)  # noqa: UP031
    for name in names:
        file = tmp_path / "my set" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\0" * 64)
    message = refusal(tmp_path / "my set")
    assert ("no split (1), such as" in message) == ("extra.tfrecord" in names)
    store = run_advice(advice(message), tmp_path / "s")
    assert [store.count(split) for split in ("train", "validation", "test")] == counts


@pytest.mark.parametrize("name", ["train.tfrecord", "train.tfrecords", "x-train.tfrecord-00000-of-00010", "train00-7.tfrec"])
def test_tfrecords_are_converted_by_a_package_of_this_name(tmp_path: Path, pictures, name: str, monkeypatch) -> None:
    """With a package that gives what tfrecord 1.14 gave for such files: bytes alone, numbers in arrays."""
    rows = [
        {
            "image/encoded": pictures.png(),
            "image/caption": "é cat".encode(),
            "image/class/label": "n([1])",
            "box": "n([1, 2.5])",
        },
        {"image/encoded": pictures.jpeg(), "image/caption": b"a dog", "image/class/label": "n([0])", "box": "n([0, 0.5])"},
    ]
    given = ", ".join(
        "{" + ", ".join(f"{k!r}: {v if isinstance(v, str) else repr(v)}" for k, v in row.items()) + "}" for row in rows
    )
    packaged(tmp_path / "packages", f"[{given}]", monkeypatch)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(b"\0" * 64)
    for source in (tmp_path / "in", tmp_path / "in" / name):
        message = refusal(source)
        assert "TFRecord" in message and "[import-convert]" in message
    if name == "train.tfrecord":  # seconds
        store = run_advice(advice(message), tmp_path / "s")
        assert captions_of(store) == ["a dog", "é cat"] and sorted(names_of(store, "image/class/label")) == ["0", "1"]


def test_what_is_not_known_has_no_such_command(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "y.json").write_text("{")
    buffer = io.BytesIO()
    Image.new("L", (2, 2)).save(buffer, "PNG")
    (tmp_path / "z.bin").write_bytes(buffer.getvalue())
    for name in ("x.json", "y.json", "z.bin"):
        assert conversion(tmp_path / name, Access.to(tmp_path)) == ""
        assert "[import-unknown-data]" in refusal(tmp_path / name)


@pytest.mark.long
def test_parquet_that_names_image_files_becomes_a_table(tmp_path: Path, pictures) -> None:
    for number in range(2):
        pictures.file(tmp_path / "in" / f"{number}.png")
    columns = {"file_name": ["0.png", "1.png"], "text": ['a "cat", black', "a dog"], "url": ["x", None]}
    pq.write_table(pa.table(columns), tmp_path / "in" / "metadata.parquet")
    message = refusal(tmp_path / "in" / "metadata.parquet")
    assert captions_of(run_advice(advice(message), tmp_path / "s")) == ['a "cat", black', "a dog"]
    pq.write_table(pa.table({"url": ["x"]}), tmp_path / "x.parquet")
    assert "`" not in refusal(tmp_path / "x.parquet")


@pytest.mark.parametrize("count", [1, 3])
def test_links_that_lead_out_are_counted(tmp_path: Path, pictures, count: int) -> None:
    (tmp_path / "in").mkdir()
    for number in range(count):
        (tmp_path / "in" / f"{number}.png").symlink_to(pictures.file(tmp_path / f"{number}.png"))
    message = refusal(tmp_path / "in")
    assert f"links lead out of {tmp_path / 'in'} ({count})" in message and "[import-all-outside]" in message
    assert import_records(tmp_path / "in", tmp_path / "s", allow_outside=True).counts["train"] == count


@pytest.mark.parametrize("name", ["captions.csv", "x.json"])
def test_leaving_files_out_is_offered_only_where_it_works(tmp_path: Path, pictures, name: str) -> None:
    """Where files may describe the images, the format must be said as well."""
    source = tree(tmp_path / "in", pictures, "a")
    (source / name).write_text("x")
    message = refusal(source)
    assert "leave them out with --skip-broken" not in message
    assert len(run(commands(message)[-1], tmp_path / "s")) == 1
    (source / name).rename(source / "x.dcm")
    assert "leave them out with --skip-broken" in refusal(source)
    assert import_records(source, tmp_path / "t", skip_broken=True).counts["train"] == 1


def test_a_packed_file_is_named_and_a_folder_of_such_a_name_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "x.zip").mkdir()
    (tmp_path / "x.zip" / "notes.txt").write_text("no table")
    (tmp_path / "captions.csv.gz").write_bytes(b"x")
    assert "[import-unknown-data]" in refusal(tmp_path / "x.zip")
    assert "captions.csv.gz is a packed file" in refusal(tmp_path / "captions.csv.gz")
    (tmp_path / "captions.xlsx").write_bytes(b"PK")
    assert "captions.xlsx is a spreadsheet: save it as CSV" in refusal(tmp_path / "captions.xlsx")


def test_records_of_a_tfrecord_may_have_other_features_than_the_first(tmp_path: Path, monkeypatch) -> None:
    rows = [
        {"a": b"x", "t": b"x"},
        {"a": b"\xff", "t": b"", "box": np.array([1.0, 2.0]), "n": np.array([1])},
        {"box": np.array([3.0]), "n": np.array([], np.int64)},
    ]
    reader = SimpleNamespace(tfrecord_loader=lambda path, index: iter(rows))
    monkeypatch.setitem(sys.modules, "tfrecord.reader", reader)
    (tmp_path / "x.tfrecord").touch()
    convert(tmp_path / "x.tfrecord", tmp_path)
    written = pq.read_table(tmp_path / "train.parquet").to_pydict()
    assert written == {"a": [b"x", b"\xff", None], "box": [None, [1, 2], [3]], "n": [None, 1, None], "t": ["x", "", None]}
