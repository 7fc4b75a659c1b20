"""Stores at URLs: copied once, only what the owner needs, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dpfed.config import DataConfig
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.opening import open_records
from dpfed.data.store.records import RecordStore
from dpfed.data.store.sharding import shard_store
from dpfed.errors import UserError

SHARDS = 4


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    write_shapes(folder / "whole", train=400, validation=0, test=50)
    shard_store(folder / "whole", folder / "sharded", SHARDS)
    return folder / "sharded"


def upload(path: Path, url: str) -> str:
    files, root = fsspec.core.url_to_fs(url)
    files.put(f"{path}/", root, recursive=True)
    return url


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, sharded: Path, tmp_path: Path):
    if request.param == "file":
        yield upload(sharded, f"file://{tmp_path}/bucket/store")
    else:
        yield upload(sharded, "memory://bucket/store")
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]


def opened(url: str, stores: Path, owner: int = 0, owners: int = 1, **more: object) -> RecordStore:
    return open_records(DataConfig(source="store", path=url, stores=str(stores)), owner=owner, owners=owners, **more)


def folders(store: RecordStore) -> set[str]:
    return {str(file.parent.relative_to(store.path)) for file in store.path.rglob("*.arrow")}


def test_only_the_owners_shards_are_copied_and_only_once(url: str, sharded: Path, tmp_path: Path, monkeypatch) -> None:
    calls: list[tuple[int, int | None]] = []
    first = opened(url, tmp_path / "stores", 1, 2, progress=lambda *at: calls.append(at))
    local = RecordStore.open(sharded, 1, 2)
    assert np.array_equal(first.keys, local.keys) and (first.images([3], 32) == local.images([3], 32)).all()
    assert folders(first) == {"shard-00001", "shard-00003", "held-out"}
    assert calls[-1] == (len(local), len(local)) and first.path.parent == tmp_path / "stores"
    calls.clear()
    times = {file: file.stat().st_mtime_ns for file in first.path.rglob("*.arrow")}
    opened(url, tmp_path / "stores", 1, 2, progress=lambda *at: calls.append(at))
    second = opened(url, tmp_path / "stores", 0, 2, progress=lambda *at: calls.append(at))
    assert calls[-1][1] == 400 - len(local.split("train"))  # of the held-out records there is a copy already
    assert second.path == first.path and all(file.stat().st_mtime_ns == time for file, time in times.items())
    assert not [file for file in first.path.rglob("*") if "partial" in file.name]


def test_a_store_that_is_not_sharded_is_copied_whole(sharded: Path, tmp_path: Path) -> None:
    url = f"file://{sharded.parent}/whole"
    assert len(opened(url, tmp_path, 2, 3)) == 450


@pytest.mark.parametrize("name", ["shard-00001/records.arrow", "held-out/index.arrow"])
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
    files.pipe_file(f"{root}/shard-00002/records.arrow", bytes(left))
    with pytest.raises(UserError, match=f"shard-00002/records.arrow has {left} bytes instead of"):
        opened(url, tmp_path / "stores")
    assert not list((tmp_path / "stores").rglob("shard-00002/*records*"))
    files.rm_file(f"{root}/shard-00002/records.arrow")
    with pytest.raises(UserError, match="cannot be read.*check the address"):
        opened(url, tmp_path / "stores")
    opened(url, tmp_path / "stores", 1, 4)  # who does not need it can go on


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
