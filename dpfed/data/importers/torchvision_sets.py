"""Imports data sets of torchvision from the folders in which torchvision keeps them. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfed.data.importers.access import Access
from dpfed.data.importers.source import Importer, Item, Source
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError


class Cifar10Importer(Importer):
    """Imports CIFAR-10 from its Python pickles."""

    name = "cifar10"
    layout = "cifar-10-batches-py/ with data_batch_1 .. data_batch_5, test_batch and batches.meta"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` contains the folder of CIFAR-10's batches."""
        return (path / "cifar-10-batches-py").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads both splits into memory (180 MB).

        Raises:
            UserError: If a file is missing or damaged, or may not be read.
        """
        _require_inside(path / "cifar-10-batches-py", access or Access.to(path))
        from torchvision.datasets import CIFAR10

        sets = {split: _load(self, CIFAR10, path, train=split == "train") for split in ("train", "test")}
        parts = {split: (part.data, part.targets) for split, part in sets.items()}
        return _from_arrays(self, path, parts, sets["train"].classes)


class FashionMnistImporter(Importer):
    """Imports Fashion-MNIST from its IDX files."""

    name = "fashion-mnist"
    layout = "FashionMNIST/raw/ with the four unpacked *-ubyte files (gunzip them)"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` contains the folder of Fashion-MNIST's files."""
        return (path / "FashionMNIST" / "raw").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads both splits into memory (55 MB).

        Raises:
            UserError: If a file is missing or damaged, or may not be read.
        """
        _require_inside(path / "FashionMNIST" / "raw", access or Access.to(path))
        from torchvision.datasets import FashionMNIST

        sets = {split: _load(self, FashionMNIST, path, train=split == "train") for split in ("train", "test")}
        parts = {split: (part.data.numpy(), part.targets) for split, part in sets.items()}
        return _from_arrays(self, path, parts, FashionMNIST.classes)


def _load(importer: Importer, load: Any, path: Path, **options: Any) -> Any:
    try:
        return load(str(path), **options)
    except Exception as error:  # on damaged files torchvision's readers raise almost anything
        raise _missing(importer, path, "files are missing or damaged") from error


def _require_inside(folder: Path, access: Access) -> None:
    if folder.is_dir():
        for file in folder.iterdir():
            if not file.is_dir():
                access.file(file)


def _missing(importer: Importer, path: Path, why: str) -> UserError:
    return UserError(f"cannot read {importer.name} in {path} ({why}): expected {path}/{importer.layout}. [import-torchvision]")


def _from_arrays(importer: Importer, path: Path, parts: dict[str, tuple[Any, Any]], classes: list[str]) -> Source:
    """Returns the source of records that are given as arrays, and have no names of their own.

    Args:
        importer: Importer that read the arrays.
        path: Path of the source.
        parts: Images and class numbers of each split.
        classes: Names of the classes, in the order of their numbers.

    Raises:
        UserError: If a split has different numbers of images and class numbers.
    """
    for split, (images, targets) in parts.items():
        if len(images) != len(targets):
            raise _missing(importer, path, f"{split} holds {len(images):,} images and {len(targets):,} labels")

    def records() -> Iterator[Item]:
        for split, (images, targets) in parts.items():
            for row, (image, target) in enumerate(zip(images, targets, strict=True)):
                yield RecordInput(f"{split}/", image, (), {"label": int(target)}, split, place=f"{split}/{row}")

    total = sum(len(images) for images, _ in parts.values())
    return Source("image", records(), {"label": list(classes)}, frozenset(parts), total, named=False)
