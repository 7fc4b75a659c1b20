"""What all importers share: detection, held-out records, broken images, reports."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.data.importers import detect, import_records, importers
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

CIFAR10 = Path(__file__).parents[4] / "shared" / "data" / "cifar10"


def class_folders(root: Path, pictures, count: int = 6) -> Path:
    for name in ("cat", "dog"):
        for number in range(count):
            pictures.file(root / name / f"{number}.jpg")
    return root


def test_every_importer_says_what_it_expects() -> None:
    for name, importer in importers().items():
        assert importer.name == name and importer.layout and importer.__doc__


def test_unknown_formats_and_missing_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'parquet'.*import-format-unknown"):
        import_records(tmp_path, tmp_path / "s", format="parqet")
    with pytest.raises(UserError, match="nowhere.*import-nothing-there"):
        import_records(tmp_path / "nowhere", tmp_path / "s")
    with pytest.raises(UserError, match="there are no records in .*import-empty-folder"):
        detect(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"?")
    with pytest.raises(UserError, match="cifar10.*import-unknown-data"):
        detect(tmp_path)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", sorted(importers()))
def test_every_importer_refuses_an_empty_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError):
        import_records(tmp_path / "in", tmp_path / "s", format=name)
    assert not (tmp_path / "s").exists()


def test_validation_and_test_records_are_held_out(tmp_path: Path, pictures) -> None:
    source = class_folders(tmp_path / "in", pictures)
    seen = []
    options = {"size": 8, "public": True, "progress": lambda *at: seen.append(at)}
    report = import_records(source, tmp_path / "s", validation=3, test=2, **options)
    assert report.counts == {"train": 7, "validation": 3, "test": 2} and report.skipped == [] and seen[-1] == (12, 12)
    store, again = RecordStore.open(report.path), import_records(source, tmp_path / "again", validation=3, test=2)
    assert store.public and store.name == "in"
    for split in ("validation", "test"):
        twin = RecordStore.open(again.path)
        assert store.ids(store.split(split)) == twin.ids(twin.split(split))


def test_validation_is_refused_where_the_source_has_its_own(tmp_path: Path, pictures) -> None:
    class_folders(tmp_path / "in" / "train", pictures)
    class_folders(tmp_path / "in" / "val", pictures)
    with pytest.raises(UserError, match="validation.*import-own-split"):
        import_records(tmp_path / "in", tmp_path / "s", validation=2)
    assert not (tmp_path / "s").exists()


def test_broken_files_are_counted_and_named(tmp_path: Path, pictures) -> None:
    source = class_folders(tmp_path / "in", pictures)
    (source / "cat" / "3.jpg").write_bytes(b"")
    (source / "dog" / "4.jpg").unlink()
    (source / "dog" / "4.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(UserError, match=r"2 of 12 .*(cat/3\.jpg|dog/4\.jpg).*--skip-broken.*record-unreadable"):
        import_records(source, tmp_path / "s")
    report = import_records(source, tmp_path / "s", skip_broken=True, validation=4)
    assert sorted(id for id, _ in report.skipped) == ["cat/3.jpg", "dog/4.jpg"]
    assert report.counts == {"train": 6, "validation": 4, "test": 0}


def test_all_broken_files_are_counted_though_some_are_listed(tmp_path: Path, pictures, monkeypatch) -> None:
    source = class_folders(tmp_path / "in", pictures)
    for number in range(3):
        (source / "cat" / f"broken{number}.jpg").touch()
    monkeypatch.setattr("dpfed.data.store.writing.MOST_SKIPPED", 2)
    shown = CliRunner().invoke(app, ["import", str(source), str(tmp_path / "s"), "--skip-broken"], catch_exceptions=False)
    assert re.search(r"skipped [^\n]* \(3\)", shown.stdout)
    store = RecordStore.open(tmp_path / "s")
    assert (len(store.skipped), store.left_out) == (2, 3)


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR10.is_dir(), reason="needs ../shared/data/cifar10")
def test_the_real_cifar10(tmp_path: Path) -> None:
    report = import_records(CIFAR10, tmp_path / "cifar10", size=32, validation=5000)
    assert report.format == "parquet" and report.counts == {"train": 45_000, "validation": 5000, "test": 10_000}
    store = RecordStore.open(report.path)
    assert len(store) == 60_000 and store.kind == "image" and not report.skipped
    assert np.bincount(store.labels["label"]).tolist() == [6000] * 10
    assert store.images(store.split("test")[:64], 32).float().std() > 30
