"""Stores at URLs: copied once, whole or not at all."""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dpfed.config import DataConfig
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.opening import open_records
from dpfed.data.store.layout import HEADER
from dpfed.data.store.records import RecordStore
from dpfed.data.store.remote import fetch_store
from dpfed.errors import UserError
from dpfed.places import is_url


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    write_shapes(folder / "whole", train=400, validation=0, test=50)
    return folder / "whole"


def upload(path: Path, url: str) -> str:
    files, root = fsspec.core.url_to_fs(url)
    files.put(f"{path}/", root, recursive=True)
    return url


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, whole: Path, tmp_path: Path):
    if request.param == "file":
        yield upload(whole, f"file://{tmp_path}/bucket/store")
    else:
        yield upload(whole, "memory://bucket/store")
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]


def opened(url: str, stores: Path, **more: object) -> RecordStore:
    return open_records(DataConfig(source="store", path=url, stores=str(stores)), **more)


def test_a_store_is_copied_only_once(url: str, whole: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    first = opened(url, tmp_path / "stores", progress=lambda *at: calls.append(at))
    local = RecordStore.open(whole)
    assert np.array_equal(first.keys, local.keys) and (first.images([3], 32) == local.images([3], 32)).all()
    assert calls == [(1, 2), (2, 2)] and first.path.parent == tmp_path / "stores"
    times = {file: file.stat().st_mtime_ns for file in first.path.rglob("*.arrow")}
    second = opened(url, tmp_path / "stores", progress=lambda *at: calls.append(at))
    assert len(calls) == 2
    assert second.path == first.path and all(file.stat().st_mtime_ns == time for file, time in times.items())
    assert not [file for file in first.path.rglob("*") if "partial" in file.name]


def test_another_store_at_the_same_address_is_another_copy(url: str, whole: Path, tmp_path: Path) -> None:
    first = opened(url, tmp_path / "stores")
    upload(whole, url)  # the same bytes, written again: cannot be told from others of the same size
    assert opened(url, tmp_path / "stores").path != first.path


@pytest.mark.parametrize("name", ["records.arrow", "index.arrow"])
def test_a_copy_that_was_interrupted_is_completed(url: str, tmp_path: Path, name: str) -> None:
    """As a killed process leaves it: the file has another name until it is whole."""
    first = opened(url, tmp_path / "stores")
    whole = (first.path / name).read_bytes()
    (first.path / name).unlink()
    partial = (first.path / name).with_name(f".{Path(name).name}.partial")
    partial.write_bytes(whole[:100])
    opened(url, tmp_path / "stores")
    assert (first.path / name).read_bytes() == whole and not partial.exists()


@pytest.mark.parametrize("left", [0, 100])
def test_an_upload_that_is_not_complete_is_refused(url: str, tmp_path: Path, left: int) -> None:
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/records.arrow", bytes(left))
    with pytest.raises(UserError, match=f"records.arrow has {left} bytes instead of"):
        opened(url, tmp_path / "stores")
    assert not list((tmp_path / "stores").rglob("*records*"))
    files.rm_file(f"{root}/records.arrow")
    with pytest.raises(UserError, match="cannot be read.*check the address"):
        opened(url, tmp_path / "stores")


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("memory://nowhere/at/all", "cannot be read.*check the address"),
        ("file:///nowhere/at/all", "cannot be read.*check the address"),
        ("gcss://bucket/store", "gcss://.*did you mean 'gcs'"),
        ("s3://bucket/store", "cannot be read.*s3fs"),
        ("ftp://me:secret@host/store", "holds a password"),
    ],
)
def test_addresses_that_cannot_be_read_are_named(tmp_path: Path, address: str, named: str) -> None:
    if address.startswith("s3:"):
        try:
            import s3fs  # noqa: F401

            pytest.skip("s3fs is installed")
        except ImportError:
            pass
    with pytest.raises(UserError, match=named) as error:
        opened(address, tmp_path / "stores")
    assert "secret" not in str(error.value) and not (tmp_path / "stores").exists()


def test_missing_credentials_are_a_users_mistake(url: str, tmp_path: Path, monkeypatch) -> None:
    class NoCredentialsError(Exception):  # S3's own is no OSError either
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    files, _ = fsspec.core.url_to_fs(url)
    monkeypatch.setattr(type(files), "cat_file", refuse)
    with pytest.raises(UserError, match="Unable to locate credentials.*this machine's credentials"):
        opened(url, tmp_path / "stores")


def test_a_kind_of_storage_whose_package_is_missing_is_named_with_it(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(UserError, match="cannot be read with what is installed here: Install s3fs to access S3.$"):
        opened("s3://bucket/store", tmp_path / "stores")


def test_damage_is_named_before_anything_is_copied(url: str, tmp_path: Path) -> None:
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/{HEADER}", b"{")
    with pytest.raises(UserError, match="damaged"):
        opened(url, tmp_path / "stores")
    assert not (tmp_path / "stores").exists()


def test_importers_read_no_addresses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'parquet' reads files on this machine"):
        open_records(DataConfig(source="parquet", path="memory://x", stores=str(tmp_path / "stores")))


def _fetch(url: str, stores: Path) -> int:
    return len(RecordStore.open(fetch_store(url, stores)))


def test_processes_can_fetch_at_once(whole: Path, tmp_path: Path) -> None:
    jobs = [(f"file://{whole}", tmp_path)] * 4
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        counts = pool.starmap(_fetch, jobs)
    assert counts == [450] * 4
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_a_part_that_another_process_is_copying_is_waited_for(whole: Path, tmp_path: Path) -> None:
    url = f"file://{whole}"
    copy = fetch_store(url, tmp_path)
    (copy / "index.arrow").unlink()
    second = threading.Thread(target=fetch_store, args=(url, tmp_path))
    with (copy / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        second.start()
        second.join(0.3)
        assert second.is_alive() and not (copy / "index.arrow").exists()
    second.join(10)
    assert (copy / "index.arrow").exists()


@pytest.mark.parametrize("path", ["s3://bucket/store", "file:///a", "memory://x", "simplecache::s3://b/x", "gs://b"])
def test_urls(path: str) -> None:
    assert is_url(path)


@pytest.mark.parametrize("path", ["store", "/a/b", "./s3:/x", "~/x", "a b://c", "C:/x", "data/x://y"])
def test_paths(path: str) -> None:
    assert not is_url(path)
