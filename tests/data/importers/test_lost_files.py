"""Every file below a source is read, passed over by name and said to be, or refused: none is lost without a word."""

from __future__ import annotations

import io
import shlex
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.data.importers import import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def run(command: str, dest: Path) -> RecordStore:
    """Does what a message shows, with a place for the store."""
    words = shlex.split(command.replace("DEST", shlex.quote(str(dest))))
    assert words[:2] == ["dpfed", "data"]
    invoke(*words[2:])
    return RecordStore.open(dest)


def refusal(source: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        import_records(source, source.parent / "refused", **options)
    assert not (source.parent / "refused").exists()
    return str(caught.value)


def commands(message: str) -> list[str]:
    return [part for part in message.split("`") if part.startswith("dpfed data import")]


def folder(root: Path, pictures, *names: str) -> Path:
    for name in names:
        pictures.file(root / name) if name.endswith((".png", ".jpg")) else write(root / name)
    return root


def write(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["x.dcm", "x.SVG", "x.nii.gz", "x", "x.txt", "x.tar", "x.jpg.part", "licence plate"])
def test_an_unknown_file_is_counted_by_its_suffix_and_refused(tmp_path: Path, pictures, name: str) -> None:
    source = folder(tmp_path / "in", pictures, "a/0.png", "a/1.png", f"b/{name}", f"b/deep/{name}", "c/0.png")
    kind = f"{Path(name).suffix.lower()} files" if "." in name else "files without a suffix"
    assert f"2 files, folders or columns would be lost: {kind} are not read (2): b/{name}, b/deep/{name}" in refusal(source)
    report = import_records(source, tmp_path / "s", format="folder", skip_broken=True)
    assert report.counts["train"] == 3 and sorted(id for id, _ in report.skipped) == sorted([f"b/{name}", f"b/deep/{name}"])
    assert report.passed_over == {"folder b without an image": 1}
    assert RecordStore.open(tmp_path / "s").label_names == {"label": ["a", "c"]}


def test_classes_without_a_record_are_named(tmp_path: Path, pictures) -> None:
    source = folder(tmp_path / "in", pictures, "a/0.png", "b/0.png")
    write(source / "b" / "0.png", b"broken")
    assert "Classes of label without a record (1): b." in invoke("import", source, tmp_path / "s", "--skip-broken")


def test_images_that_no_split_holds_are_refused(tmp_path: Path, pictures) -> None:
    said = refusal(folder(tmp_path / "a", pictures, "train/x/0.png", "loose.png"))
    assert "loose.png" in said and "[folder-beside]" in said
    assert "[folder-no-training]" in refusal(folder(tmp_path / "b", pictures, "val/x/0.png", "test/x/0.png"))
    assert "[folder-no-training]" not in refusal(folder(tmp_path / "c", pictures, "val/x/0.png", "train/0.dcm"))


@pytest.mark.parametrize("other", ["a/0.png", "extra.csv", "train.tar", "x.dcm"])
def test_other_files_beside_parquet_are_refused(tmp_path: Path, pictures, other: str) -> None:
    source = folder(tmp_path / "in", pictures, other, "README.md", "dataset_infos.json")
    pq.write_table(pa.table({"image": [pictures.png()]}), source / "train.parquet")
    said = refusal(source, format="parquet")
    assert "1 file, folder or column" in said and other in said and "[import-lost-files]" in said
    if other.endswith(".png"):
        assert len(run(commands(said)[-1], tmp_path / "s")) == 1
    assert import_records(source, tmp_path / "t", format="parquet", skip_broken=True).passed_over == {
        "README.md": 1,
        "dataset_infos.json": 1,
    }


def test_images_that_parquet_names_by_path_are_not_lost(tmp_path: Path, pictures) -> None:
    source = folder(tmp_path / "in", pictures, "images/0.png", "images/1.png")
    rows = pa.array(
        [{"bytes": None, "path": f"images/{row}.png"} for row in range(2)], pa.struct([("bytes", pa.binary()), ("path", "str")])
    )
    pq.write_table(pa.table({"image": rows}), source / "train.parquet")
    report = import_records(source, tmp_path / "s")
    assert report.counts["train"] == 2 and report.passed_over == {".png files": 2}


def archive(path: Path, members: list[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members:
            member = tarfile.TarInfo(name) if isinstance(name, str) else name
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def special(name: str, type: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = type, target
    return member


def test_members_that_no_sample_explains_are_refused(tmp_path: Path, pictures) -> None:
    members = [
        ("0.png", pictures.png()),
        ("0.npy", b"?"),
        ("1.dcm", b"?"),
        ("1.json", b"{}"),
        ("noname", b"?"),
        ("README", b"?"),
    ]
    members += [(special("2.png", tarfile.SYMTYPE, "/etc/passwd"), b""), (special("3.png", tarfile.LNKTYPE, "0.png"), b"")]
    members += [
        (special("4.png", tarfile.FIFOTYPE), b""),
        (special("5.png", tarfile.CHRTYPE), b""),
        (special("d", tarfile.DIRTYPE), b""),
    ]
    said = refusal(archive(tmp_path / "x.tar", members))
    for part in (
        "5 files, folders or columns",
        "[import-lost-files]",
        "a link in an archive is not followed (2): train/x/2.png, train/x/3.png",
        "a device or pipe in an archive is not read (2): train/x/4.png, train/x/5.png",
        "files without a suffix are not read (1): train/x/noname",
    ):
        assert part in said
    report = import_records(tmp_path / "x.tar", tmp_path / "s", skip_broken=True)
    assert report.counts["train"] == 1 and report.unused == (".npy", ".dcm") and report.passed_over == {"README": 1}
    assert ("train/x/1", "no image that is read, only .dcm") in report.skipped


def table(path: Path, files: list[str], title: str = "title") -> None:
    separator = "\t" if path.suffix == ".tsv" else ","
    lines = [f"filepath{separator}{title}"] + [f"{file}{separator}about {file}" for file in files]
    write(path, "\n".join(lines).encode())


@pytest.fixture
def captioned(tmp_path: Path, pictures) -> Path:
    """Four images, three of them in tables that are named by split."""
    source = folder(tmp_path / "in", pictures, *(f"images/{number}.png" for number in range(4)))
    table(source / "train.tsv", ["images/0.png", "images/1.png"])
    table(source / "test.tsv", ["images/2.png"])
    return source


@pytest.mark.parametrize("how", [[], ["--format", "table"], "tables"])
def test_a_folder_of_tables_named_by_split_is_a_captioned_set(tmp_path: Path, captioned: Path, how: list | str):
    sources = [captioned / "train.tsv", captioned / "test.tsv"] if how == "tables" else [captioned]
    said = invoke("import", *sources, tmp_path / "s", *([] if how == "tables" else how))
    assert "image-text records from table: 2 train, 0 validation, 1 test" in said
    assert ("images that no table names (1)" in said) == (how != "tables")
    store = RecordStore.open(tmp_path / "s")
    assert store.ids(store.split("test")) == ["images/2.png"] and store.captions([2]) == [["about images/2.png"]]


def test_every_table_beside_images_needs_a_meaning(tmp_path: Path, pictures, captioned: Path) -> None:
    """One table that names few images, two, one that names no image, and one of no files: refused, with both commands."""
    cases = {}
    for number, names in enumerate((["captions.csv"], ["a.csv", "b.tsv"], ["metadata.csv"])):
        cases[number] = folder(tmp_path / f"other{number}", pictures, *(f"images/{image}.png" for image in range(3)))
        for file, name in enumerate(names):
            table(cases[number] / name, [f"images/{file}.png"])
    for number, source in cases.items():
        for options in ({}, {"skip_broken": True}):
            with_captions, alone = commands(refusal(source, **options))
            store = run(with_captions, tmp_path / f"t{number}{len(options)}")
            assert store.kind == "image-text" and store.ids([0]) == ["images/0.png"]
            assert run(alone, tmp_path / f"a{number}{len(options)}").kind == "image"
    table(captioned / "train.tsv", ["pictures/0.png", "pictures/1.png"])
    table(captioned / "test.tsv", ["pictures/2.png"])
    for options in ({}, {"format": "table"}, {"skip_broken": True}):
        assert "[table-names-no-image]" in refusal(captioned, **options) and len(commands(refusal(captioned, **options))) == 2
    table(captioned / "val.csv", [])
    write(captioned / "train.tsv", b"id\tlabel\n0\t1\n")
    assert "[table-no-file-column]" in refusal(captioned, format="table")
    assert len(commands(refusal(captioned))) == 2


@pytest.mark.parametrize("name", ["captions.json", "annotations/instances.json", "images/1.txt", "images/0.xml"])
def test_captions_in_other_files_beside_images_are_not_lost(tmp_path: Path, pictures, name: str) -> None:
    source = folder(tmp_path / "in", pictures, "images/0.png", name)
    for options in ({}, {"format": "folder"}, {"skip_broken": True}):
        said = refusal(source, **options)
        assert name in said and "table with the columns filepath and title" in said
    assert len(run(commands(said)[-1], tmp_path / "s")) == 1


def test_tables_that_disagree_are_refused(tmp_path: Path, captioned: Path) -> None:
    table(captioned / "test.tsv", ["images/1.png"])
    said = refusal(captioned)
    assert "a different split or label in train.tsv:3" in said and "[table-disagrees]" in said
    table(captioned / "test.tsv", ["images/2.png"], title="note")
    assert "[table-columns-differ]" in refusal(captioned)
    for name, column in (("train", "patient_id"), ("test", "person_id")):
        write(captioned / f"{name}.tsv", f"filepath\ttitle\t{column}\nimages/{len(name)}.png\tx\t7\n".encode())
    said = refusal(captioned)
    assert "patient_id in train.tsv, person_id in test.tsv" in said and "[table-units-differ]" in said
    table(captioned / "train.tsv", ["images/0.png", "images/1.png"])
    write(captioned / "test.tsv", b"filepath\ttitle\tsplit\nimages/2.png\tx\ttrain\n")
    assert "says train, the table's path says test; correct one of them. [table-conflict]" in refusal(captioned)
    table(captioned / "test.tsv", ["images/2.png"])
    table(captioned / "extra.tsv", ["images/2.png"])
    said = refusal(captioned, format="table")
    assert "the table extra.tsv" in said and "[table-name-no-split]" in said
    assert len(commands(refusal(captioned))) == 2


@pytest.mark.parametrize(
    ("row", "said"), [(b"a.png,a cat, black", "[table-many-cells]"), (b'a.png\t"a cat\tand "a dog', "[table-cell-tabs]")]
)
def test_a_caption_that_is_torn_or_swallows_others_is_refused(tmp_path: Path, row: bytes, said: str) -> None:
    separator = b"\t" if b"\t" in row else b","
    write(tmp_path / "t.csv", b"filepath" + separator + b"title\n" + row + b"\n" + b"b.png" + separator + b"x\n")
    assert said in refusal(tmp_path / "t.csv")


def test_a_table_that_names_no_files_is_not_advised(tmp_path: Path, pictures) -> None:
    source = folder(tmp_path / "in", pictures, "a.png")
    write(source / "notes.csv", b"x,y\n1,2\n")
    assert "notes.csv DEST" not in refusal(source) and "Write their captions or labels into a table" in refusal(source)
    write(source / "notes.csv", b"file,text\na.png,a cat\n")
    write(source / "more.csv", b"file,text\na.png,a pet\n")
    assert RecordStore.open(run(commands(refusal(source))[0], tmp_path / "s").path).captions([0]) == [["a pet", "a cat"]]
