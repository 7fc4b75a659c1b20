"""The sets that torchvision knows, in the files that it expects."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.importers import detect, import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


def imported(source: Path, dest: Path, format: str, **options: object) -> RecordStore:
    assert detect(source) == format
    import_records(source, dest, **options)
    return RecordStore.open(dest)


def as_arrays(store: RecordStore, split: str, side: int) -> np.ndarray:
    return store.images(store.split(split), side).permute(0, 2, 3, 1).numpy()


@pytest.fixture
def cifar(tmp_path: Path, pictures, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    """Three images per batch, pickled as in the original release; torchvision's checksums are replaced by theirs."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / "in" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = np.stack([pictures.array(32, 32) for _ in range(18)])

    def pickled(name: str, content: dict) -> str:
        data = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    checksums = []
    for number, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        flat = images[3 * number : 3 * number + 3].transpose(0, 3, 1, 2).reshape(3, -1)
        checksums.append([name, pickled(name, {"data": flat, "labels": [number, 9, 0], "batch_label": name})])
    meta = pickled("batches.meta", {"label_names": [f"class {i}" for i in range(10)], "num_vis": 3072})
    monkeypatch.setattr(CIFAR10, "train_list", checksums[:5])
    monkeypatch.setattr(CIFAR10, "test_list", checksums[5:])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": meta})
    return tmp_path / "in", images


def test_cifar10(tmp_path: Path, cifar: tuple[Path, np.ndarray]) -> None:
    source, images = cifar
    store = imported(source, tmp_path / "s", "cifar10", size=32)
    assert np.array_equal(as_arrays(store, "train", 32), images[:15])
    assert np.array_equal(as_arrays(store, "test", 32), images[15:])
    assert store.labels["label"].tolist() == [0, 9, 0, 1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0, 5, 9, 0]
    assert store.label_names["label"][9] == "class 9"


def test_cifar10_with_a_damaged_batch_is_refused(tmp_path: Path, cifar: tuple[Path, np.ndarray]) -> None:
    (cifar[0] / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"half")
    with pytest.raises(UserError, match="cifar-10-batches-py.*import-torchvision"):
        import_records(cifar[0], tmp_path / "s")


def test_fashion_mnist(tmp_path: Path, pictures) -> None:
    raw = tmp_path / "in" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.stack([pictures.array(28, 28, 1) for _ in range(7)])
    for name, part, labels in (("train", images[:5], [9, 2, 1, 1, 6]), ("t10k", images[5:], [9, 2])):
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, len(part), 28, 28) + part.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(part)) + bytes(labels))
    store = imported(tmp_path / "in", tmp_path / "s", "fashion-mnist", size=28, validation=2)
    assert [len(store.split(split)) for split in ("train", "validation", "test")] == [3, 2, 2]
    assert np.array_equal(as_arrays(store, "test", 28), np.repeat(images[5:, ..., None], 3, axis=3))
    assert store.label_names["label"][9] == "Ankle boot" and store.labels["label"].tolist() == [9, 2, 1, 1, 6, 9, 2]
