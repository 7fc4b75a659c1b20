"""Nothing outside of the source is read, and nothing that never ends: links, pipes, devices, paths that climb."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import detect, import_records
from dpfed.data.importers.access import Access
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


def in_time(work: Callable[[], object], seconds: float = 10.0) -> None:
    """Does something that may raise UserError, and fails when it hangs."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except UserError:
            pass
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


@pytest.fixture
def secret(tmp_path: Path, pictures) -> Path:
    return pictures.file(tmp_path / "elsewhere" / "secret.png")


def table_of_absolute_paths(root: Path, secret: Path) -> Path:
    (root / "t.csv").write_text(f"filepath,title\n0.png,mine\n{secret},theirs\n")
    return root / "t.csv"


def table_that_climbs(root: Path, secret: Path) -> Path:
    (root / "t.csv").write_text("filepath,title\n0.png,mine\n../elsewhere/secret.png,theirs\n")
    return root / "t.csv"


def table_through_a_link(root: Path, secret: Path) -> Path:
    (root / "link").symlink_to(secret.parent)
    (root / "t.csv").write_text("filepath,title\n0.png,mine\nlink/secret.png,theirs\n")
    return root / "t.csv"


def folder_with_a_linked_file(root: Path, secret: Path) -> Path:
    (root / "1.png").symlink_to(secret)
    return root


def folder_with_a_linked_folder(root: Path, secret: Path) -> Path:
    (root / "more").symlink_to(secret.parent)
    return root


def parquet_with_paths(root: Path, secret: Path) -> Path:
    images = [{"bytes": None, "path": path} for path in ("0.png", str(secret))]
    pq.write_table(
        pa.table({"image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", "str")]))}), root / "x.parquet"
    )
    return root / "x.parquet"


SOURCES = [
    table_of_absolute_paths,
    table_that_climbs,
    table_through_a_link,
    folder_with_a_linked_file,
    folder_with_a_linked_folder,
    parquet_with_paths,
]


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_nothing_outside_the_source_is_read_unless_allowed(tmp_path, pictures, secret, make):
    source, picture = make(pictures.file(tmp_path / "in" / "0.png").parent, secret), secret.read_bytes()
    with pytest.raises(UserError, match=r"outside of the source's folder \(1\).*--skip-broken, .*--allow-outside"):
        import_records(source, tmp_path / "s")
    report = import_records(source, tmp_path / "s", skip_broken=True)
    assert report.counts["train"] == 1 and picture not in (tmp_path / "s" / "records.arrow").read_bytes()
    import_records(source, tmp_path / "t", allow_outside=True)
    assert picture in (tmp_path / "t" / "records.arrow").read_bytes()


@pytest.mark.parametrize("name", ["train.parquet", "train.tar", "train.tsv", "images"])
def test_the_files_of_the_data_set_itself_must_lie_below_it(tmp_path: Path, pictures, name: str) -> None:
    """As in a cache of Hugging Face, whose snapshots are links to a folder of blobs."""
    pictures.file(tmp_path / "elsewhere" / "images" / "0.png")
    (tmp_path / "elsewhere" / "train.tsv").write_text("filepath\ttitle\n0.png\tx\n")
    pq.write_table(pa.table({"image": [pictures.png()]}), tmp_path / "elsewhere" / "train.parquet")
    with tarfile.open(tmp_path / "elsewhere" / "train.tar", "w") as archive:
        member = tarfile.TarInfo("0.png")
        member.size = len(content := pictures.png())
        archive.addfile(member, io.BytesIO(content))
    root = tmp_path / "in"
    root.mkdir()
    (root / name).symlink_to(tmp_path / "elsewhere" / name)
    if name == "train.tsv":
        pictures.file(root / "0.png")
    with pytest.raises(UserError, match=r"--allow-outside.*\[import-(outside|all-outside|lost-files)\]"):
        import_records(root, tmp_path / "s")
    assert import_records(root, tmp_path / "s", allow_outside=True).counts["train"] == 1
    assert import_records(tmp_path / "elsewhere" / name, tmp_path / "u").counts["train"] == 1 if name != "train.tsv" else True


def test_links_in_a_circle_end(tmp_path: Path, pictures) -> None:
    for name in "abcdefghijkl":
        pictures.file(tmp_path / "in" / name / "0.png")
    for name in "abcdefghijkl":
        for other in "abcdefghijkl":
            (tmp_path / "in" / name / f"to {other}").symlink_to(tmp_path / "in" / other)
    (tmp_path / "in" / "self.png").symlink_to("self.png")
    in_time(lambda: detect(tmp_path / "in"))
    in_time(lambda: import_records(tmp_path / "in", tmp_path / "s", skip_broken=True))
    assert len(RecordStore.open(tmp_path / "s")) == 12


def make_special(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's name may have 107 letters
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, pictures, kind: str) -> None:
    root = pictures.file(tmp_path / "in" / "0.png").parent
    make_special(root / "1.png", kind)
    (root / "t.csv").write_text("filepath,title\n0.png,x\n1.png,y\n")
    with pytest.raises(UserError, match="import-file-kind|import-outside"):
        Access.to(root).file(root / "1.png")
    for source, options in ((root / "t.csv", {}), (root, {"format": "folder"})):
        in_time(lambda source=source, options=options: import_records(source, tmp_path / "s", **options))
        in_time(
            lambda source=source, options=options: import_records(
                source, tmp_path / f"s-{source.name}", skip_broken=True, allow_outside=True, **options
            )
        )
        assert len(RecordStore.open(tmp_path / f"s-{source.name}")) == 1


def test_a_folder_that_cannot_be_read_is_not_lost(tmp_path: Path, pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        pictures.file(tmp_path / "in" / name / "0.png")
    scandir = os.scandir

    def closed(path: str | Path) -> object:
        if not isinstance(path, int) and Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("dpfed.data.importers.listing.os.scandir", closed)
    with pytest.raises(UserError, match=r"folder cannot be read: Permission denied \(1\): b"):
        import_records(tmp_path / "in", tmp_path / "s")


def test_files_too_large_to_be_images_are_not_read(tmp_path: Path, pictures) -> None:
    root = pictures.file(tmp_path / "in" / "0.png").parent
    with (root / "1.png").open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(UserError, match=r"larger than 1 GiB \(1\): 1\.png"):
        import_records(root, tmp_path / "s")
