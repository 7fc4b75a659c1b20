"""Images that processes decode: the pixels of the threads, in memory that nobody else can find."""

import os
import signal
import tarfile

import numpy as np
import pytest
from PIL import Image

from dpfed.data.decoding import encode
from dpfed.data.importers.importing import import_records
from dpfed.data.processes import Processes
from dpfed.data.store import pictures, writing
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError

COUNT = 70
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory without a name")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path, draw = tmp_path_factory.mktemp("files") / "store", np.random.default_rng(0)
    with StoreWriter(path, name="files", kind="image", public=True) as writer:
        for number in range(COUNT):
            pixels = draw.integers(0, 256, (20 + number % 7, 30, 3), np.uint8)
            writer.add(RecordInput(str(number), encode(Image.fromarray(pixels))))
    return RecordStore.open(path)


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(pictures, "cores", lambda: 2)
    monkeypatch.setattr(pictures, "_LEAST_CORES", 2)


def test_processes_give_the_pixels_of_threads(store, many_cores, monkeypatch):
    indices, kinds = np.random.default_rng(1).permutation(COUNT), ("crop", "pad")
    decoded = [store.images(indices, 16, kind) for kind in kinds]
    assert len(pictures._pool(os.getpid(), 2).processes._all) == 2, "processes have decoded"
    monkeypatch.setattr(pictures, "cores", lambda: 1)
    assert all((one == store.images(indices, 16, kind)).all() for one, kind in zip(decoded, kinds, strict=True))


@pytest.mark.long
def test_a_file_that_cannot_be_decoded_is_one_sentence(store, many_cores, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "00000.tar", "w") as archive:
        for number in range(COUNT):
            (tmp_path / "file").write_bytes(store.encoded(np.array([number]))[0][: 300 if number == 9 else None])
            archive.add(tmp_path / "file", f"{number:03}.png")
    with monkeypatch.context() as patch:  # a store that was damaged since
        patch.setattr(StoreWriter, "_encode", lambda self, record: writing._Stored(record.image, None))
        import_records(tmp_path / "in", tmp_path / "broken")
    with pytest.raises(UserError, match="009'.*store-image") as error:
        RecordStore.open(tmp_path / "broken").images(np.arange(COUNT), 16)
    assert "009" not in error.value.public
    assert store.images(np.arange(COUNT), 16).shape[0] == COUNT, "new processes go on"


def test_nothing_is_left_where_others_look(store, many_cores):
    before = set(os.listdir("/dev/shm"))
    images = store.images(np.arange(COUNT), 16)
    assert set(os.listdir("/dev/shm")) == before and len(images) == COUNT


@pytest.mark.long
def test_a_process_that_dies_ends_the_work_in_words():
    with pytest.raises(UserError, match="SIGKILL.*data-process"):
        list(Processes(2).each(_die_at_two, range(4)))
    with pytest.raises(OSError, match="disk"):
        list(Processes(2).each(_fail, range(4)))


def _die_at_two(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _fail(number):
    raise OSError(28, "disk full")
