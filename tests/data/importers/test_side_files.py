"""Files that hold no records, by their names: every format passes them over alike, and says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import import_records
from dpfed.data.importers.side_files import side_file
from dpfed.data.store.records import RecordStore
from tests.data.importers.test_lost_files import archive

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
NAMES = """_info.json 00000_stats.json sizes.json train.idx README README.md LICENSE.txt CITATION.cff .gitattributes Thumbs.db
    dataset_infos.json dataset_dict.json state.json croissant.json dataset-metadata.json _SUCCESS _metadata _committed_12
    part-0.parquet.crc sha256sums.txt x.md5 load.py""".split()


def a_folder(root: Path, pictures) -> None:
    for name in ("cat/0.png", "dog/1.png"):
        pictures.file(root / name)


def archives(root: Path, pictures) -> None:
    archive(root / "00000.tar", [("0.png", pictures.png()), ("1.png", pictures.png())])


def parquet(root: Path, pictures) -> None:
    root.mkdir()
    pq.write_table(pa.table({"image": [pictures.png(), pictures.png()]}), root / "train.parquet")


def a_table(root: Path, pictures) -> None:
    files = [pictures.file(root / "images" / f"{n}.png") for n in range(2)]
    (root / "train.csv").write_text("\n".join(["filepath", *(f"images/{file.name}" for file in files)]))


FORMATS = {"folder": a_folder, "webdataset": archives, "parquet": parquet, "table": a_table}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("given", [True, False], ids=["named", "found"])
def test_every_format_passes_the_same_files_over(tmp_path: Path, pictures, format: str, given: bool) -> None:
    FORMATS[format](tmp_path / "in", pictures)
    for name in NAMES:
        (tmp_path / "in" / name).write_text("{}")
    report = import_records(tmp_path / "in", tmp_path / "s", format=format if given else None)
    assert report.format == format and report.counts["train"] == 2 and report.skipped == []
    hidden = {name for name in NAMES if name.startswith(".")}
    assert report.passed_over == {"hidden files and folders": len(hidden)} | dict.fromkeys({*NAMES} - hidden, 1)


def test_an_archive_may_hold_them_too(tmp_path: Path, pictures) -> None:
    image = pictures.png()
    report = import_records(
        archive(tmp_path / "x.tar", [("0.png", image), ("a/0.json", b"{}"), ("a/0.png", image), *((n, b"{}") for n in NAMES)]),
        tmp_path / "s",
    )
    assert report.counts["train"] == 2 and sum(report.passed_over.values()) == len(NAMES)


def test_a_caption_is_one_whatever_its_sample_is_called(tmp_path: Path, pictures) -> None:
    members = [("notice.png", pictures.png()), ("notice.txt", b"a board"), ("state.json", b'{"caption": "Utah"}')]
    import_records(archive(tmp_path / "x.tar", [*members, ("state.png", pictures.png())]), tmp_path / "s")
    assert sorted(RecordStore.open(tmp_path / "s").captions([0, 1])) == [["Utah"], ["a board"]]


@pytest.mark.parametrize(
    ("make", "passed_over"),
    [
        (lambda root, pictures: archive(root / "00000.tar", [("0.png", pictures.png())]), 1),
        (lambda root, pictures: archive(root / "00000.tar.gz", [("0.png", pictures.png())]), 1),
        (lambda root, pictures: pictures.file(root / "00000" / "000000000.png"), 1),
        (lambda root, pictures: None, 0),
        (lambda root, pictures: archive(root / "1.tar", [("0.png", pictures.png())]), 0),
    ],
)
def test_parquet_about_a_shard_is_told_from_parquet_with_records(tmp_path: Path, pictures, make: Callable, passed_over) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"image": [pictures.png()]}), tmp_path / "in" / "00000.parquet")
    make(tmp_path / "in", pictures)
    options = {"format": "webdataset", "skip_broken": True} if (tmp_path / "in" / "1.tar").exists() else {}
    report = import_records(tmp_path / "in", tmp_path / "s", **options)
    assert sum(report.passed_over.values()) == passed_over and report.counts["train"] == 1


def test_the_page_has_the_table() -> None:
    part = PAGE.read_text().partition("## Side files")[2].partition("\n## ")[0]
    named = re.findall(r"`([^`]+)`", "".join(line for line in part.splitlines() if line.startswith("|")))
    assert len(named) > 20
    for name in named:
        assert side_file(name.replace("*", "0"), {"0.tar"}.__contains__) is not None, name
