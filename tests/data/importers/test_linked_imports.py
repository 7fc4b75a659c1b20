"""Images that stay in their archives: the store is as good as one that holds them, until an archive changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfed.cli import app
from dpfed.data.importers import import_records, pieces
from dpfed.data.public_store import share_images
from dpfed.data.store.division import divide_store
from dpfed.data.store.fingerprint import contents_of, splits_of
from dpfed.data.store.records import RecordStore
from dpfed.data.store.sharding import shard_store
from dpfed.errors import UserError
from tests.data.importers.test_parallel_imports import archive


@pytest.fixture(params=[1, 1 << 30], ids=["many volumes", "one volume"])
def archives(request, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(pieces, "_SMALLEST", request.param)
    for shard in range(3):
        archive(tmp_path / "in" / f"{shard:05}.tar", range(8 * shard, 8 * (shard + 1)))
    return tmp_path / "in"


@pytest.fixture
def linked(archives: Path, tmp_path: Path) -> RecordStore:
    import_records(archives, tmp_path / "linked", public=True, validation=5, link=True)
    return RecordStore.open(tmp_path / "linked")


def test_it_is_the_store_that_a_copy_would_be(archives: Path, tmp_path: Path, linked: RecordStore) -> None:
    import_records(archives, tmp_path / "copied", public=True, validation=5)
    copied, rows = RecordStore.open(tmp_path / "copied"), np.arange(24)
    assert linked.contents == copied.contents == contents_of(linked, None).fingerprint(splits_of(linked))
    assert linked.ids(rows) == copied.ids(rows) and linked.captions(rows) == copied.captions(rows)
    assert linked.encoded(rows) == copied.encoded(rows) and np.array_equal(linked.keys, copied.keys)
    order = np.random.default_rng(0).permutation(24)
    assert (linked.images(order, 8) == copied.images(order, 8)).all() and linked.linked_files == 3
    assert share_images(linked, copied) and share_images(copied, linked)
    image = linked.encoded(rows[:1])[0]
    assert not any(image in file.read_bytes() for file in linked.path.iterdir())


@pytest.mark.parametrize("how", ["sharded", "divided"])
def test_parts_of_it_are_linked_too(tmp_path: Path, linked: RecordStore, how: str) -> None:
    if how == "sharded":
        parts = [shard_store(linked.path, tmp_path / "shards", 4)]
    else:
        parts = divide_store(linked.path, tmp_path / "sites", 2, 0.0)
    whole = dict(zip(linked.ids(np.arange(24)), linked.encoded(np.arange(24)), strict=True))
    found: dict[str, bytes] = {}
    for part in parts:
        rows = np.arange(len(part))
        found |= zip(part.ids(rows), part.encoded(rows), strict=True)
        assert part.linked_files == 3
    assert found == whole


@pytest.mark.parametrize(
    ("how", "said"),
    [("gone", "not there any more"), ("longer", "instead of"), ("a pipe", "instead of"), ("moved", "not there")],
)
def test_a_file_that_is_not_what_it_was_is_refused_when_the_store_is_opened(archives, linked, how: str, said: str) -> None:
    file = archives / "00001.tar"
    if how == "longer":
        with file.open("ab") as archive:
            archive.write(bytes(512))
    elif how == "moved":
        archives.rename(archives.with_name("elsewhere"))
    else:
        file.unlink()
        if how == "a pipe":
            os.mkfifo(file)
    with pytest.raises(UserError, match=rf"is linked to .*{'in/' if how == 'moved' else '00001.tar'}.*{said}"):
        RecordStore.open(linked.path)


@pytest.mark.parametrize("opened_before", [True, False])
def test_an_image_that_changed_is_refused_when_it_is_read(archives: Path, linked: RecordStore, opened_before: bool) -> None:
    file, image = archives / "00001.tar", linked.encoded([9])[0]
    file.write_bytes(file.read_bytes().replace(image, image[:-1] + b"?"))
    store = linked if opened_before else RecordStore.open(linked.path)
    assert len(store.encoded([8, 10])) == 2
    for read in (lambda: store.images([8, 9], 8), lambda: store.encoded([9]), lambda: contents_of(store, None)):
        with pytest.raises(UserError, match=r"00001.tar, in which an image has changed since it was imported"):
            read()


def test_an_archive_that_vanishes_while_the_store_is_open(archives: Path, linked: RecordStore) -> None:
    shutil.rmtree(archives)
    with pytest.raises(UserError, match="cannot be read any more"):
        linked.images([0], 8)


def test_only_archives_can_be_linked_and_only_as_they_are(archives: Path, tmp_path: Path, pictures) -> None:
    pictures.file(tmp_path / "images" / "a" / "0.png")
    with pytest.raises(UserError, match="--link .* the format here is 'folder'"):
        import_records(tmp_path / "images", tmp_path / "s", link=True)
    with pytest.raises(UserError, match="--size makes squares"):
        import_records(archives, tmp_path / "s", link=True, size=8)
    assert sorted(os.listdir(tmp_path)) == ["images", "in"]


def test_the_command_links_and_inspect_says_so(archives: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(
        app, ["data", "import", str(archives), str(tmp_path / "s"), "--link", "--workers", "1"], catch_exceptions=False
    )
    assert made.exit_code == 0 and "records/s" in made.output
    refused = CliRunner().invoke(app, ["data", "import", str(archives), str(tmp_path / "t"), "--workers", "0"])
    assert "the number of workers must be a whole number from 1" in str(refused.exception)
    shown = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "s"), "--json", "--check"])
    assert json.loads(shown.stdout)["linked"] == 3
