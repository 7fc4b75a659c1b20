"""Data sets that torchvision knows, read from where torchvision keeps them; nothing is downloaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfed.data.importers.access import Access
from dpfed.data.importers.listing import Listing, list_files
from dpfed.data.importers.source import FileRecord, Importer, Item, Source
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError


class Cifar10Importer(Importer):
    """CIFAR-10 in its Python pickles."""

    name = "cifar10"
    layout = "cifar-10-batches-py/ with data_batch_1 .. data_batch_5, test_batch and batches.meta"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether the folder of the batches is there."""
        return (path / "cifar-10-batches-py").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads both splits (180 MB)."""
        _require_inside(path / "cifar-10-batches-py", access or Access.to(path))
        from torchvision.datasets import CIFAR10

        sets = {split: _load(self, CIFAR10, path, train=split == "train") for split in ("train", "test")}
        parts = {split: (part.data, part.targets) for split, part in sets.items()}
        return _from_arrays(self, path, parts, sets["train"].classes)


class FashionMnistImporter(Importer):
    """Fashion-MNIST in its IDX files."""

    name = "fashion-mnist"
    layout = "FashionMNIST/raw/ with the four unpacked *-ubyte files (gunzip them)"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether the raw folder is there."""
        return (path / "FashionMNIST" / "raw").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Reads both splits (55 MB)."""
        _require_inside(path / "FashionMNIST" / "raw", access or Access.to(path))
        from torchvision.datasets import FashionMNIST

        sets = {split: _load(self, FashionMNIST, path, train=split == "train") for split in ("train", "test")}
        parts = {split: (part.data.numpy(), part.targets) for split, part in sets.items()}
        return _from_arrays(self, path, parts, FashionMNIST.classes)


class EuroSatImporter(Importer):
    """EuroSAT, RGB; it has no official splits, so everything is for training unless records are held out."""

    name = "eurosat"
    layout = "eurosat/2750/ with ten class folders of .jpg files"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether the class folders are there."""
        return (path / "eurosat" / "2750").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Lists the files and streams them."""
        if not self.recognises(path):
            raise _missing(self, path, "the class folders are missing")
        return _from_folders(self, path, {"train": path / "eurosat" / "2750"}, access or Access.to(path), {})


class ImageNetImporter(Importer):
    """ImageNet-1k as torchvision unpacks it; its validation images are the validation split."""

    name = "imagenet"
    layout = "meta.bin, train/ and val/ with one folder per WordNet id"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether torchvision's table of class names is there."""
        return (path / "meta.bin").is_file() and (path / "train").is_dir()

    def open(self, path: Path, access: Access | None = None) -> Source:
        """Lists the files and streams them."""
        if not self.recognises(path):  # torchvision would look for the archives and unpack them into the user's folder
            raise _missing(self, path, "for class folders without meta.bin use the importer 'folder'")
        from torchvision.datasets.imagenet import load_meta_file

        access = access or Access.to(path)
        access.file(path / "meta.bin")
        synonyms = _load(self, lambda root: load_meta_file(root)[0], path)
        if not isinstance(synonyms, dict) or not all(isinstance(names, list | tuple) for names in synonyms.values()):
            raise _missing(self, path, "meta.bin holds no names of classes")
        folders = {split: path / name for split, name in (("train", "train"), ("validation", "val")) if (path / name).is_dir()}
        return _from_folders(
            self, path, folders, access, {wnid: ", ".join(map(str, names)) for wnid, names in synonyms.items()}
        )


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
    return UserError(f"cannot read {importer.name} from {path} ({why}): expected {path}/{importer.layout}.")


def _from_arrays(importer: Importer, path: Path, parts: dict[str, tuple[Any, Any]], classes: list[str]) -> Source:
    """The source of arrays, whose records have no names of their own."""
    for split, (images, targets) in parts.items():
        if len(images) != len(targets):
            raise _missing(importer, path, f"{split} holds {len(images):,} images and {len(targets):,} labels")

    def records() -> Iterator[Item]:
        for split, (images, targets) in parts.items():
            for row, (image, target) in enumerate(zip(images, targets, strict=True)):
                yield RecordInput(f"{split}/", image, (), {"label": int(target)}, split, place=f"{split}/{row}")

    total = sum(len(images) for images, _ in parts.values())
    return Source("image", records(), {"label": list(classes)}, frozenset(parts), total, named=False)


def _from_folders(importer: Importer, root: Path, folders: dict[str, Path], access: Access, names: dict[str, str]) -> Source:
    """The source of class folders.

    Args:
        importer: for messages.
        root: below which the records are named.
        folders: split -> folder of the class folders.
        access: what may be read.
        names: of the classes, by folder; empty: the folders' own. A class's number is its folder's place among all folders of
            all splits, so that a partial copy of one split shifts no numbers.
    """
    listings = {split: list_files(folder, access) for split, folder in folders.items()}
    found = {split: _by_class(listing) for split, listing in listings.items()}
    numbers = {name: number for number, name in enumerate(sorted({name for part in found.values() for _, name in part}))}
    unknown = [name for name in numbers if names and name not in names]
    if unknown:
        raise _missing(importer, root, f"it names no class {unknown[0]!r}, which is a folder")
    if not numbers:
        raise _missing(importer, root, "there are no images in class folders")

    def records() -> Iterator[Item]:
        for split, part in found.items():
            for file, name in part:
                yield FileRecord(file.relative_to(root).as_posix(), file, (), {"label": numbers[name]}, split)

    passed_over: Counter[str] = Counter()
    for listing in listings.values():
        passed_over += listing.passed_over
    return Source(
        kind="image",
        records=records(),
        label_names={"label": [names.get(name, name) for name in numbers]},
        splits=frozenset(found),
        total=sum(map(len, found.values())),
        unread=[entry for split, listing in listings.items() for entry in listing.others({file for file, _ in found[split]})],
        passed_over=passed_over,
    )


def _by_class(listing: Listing) -> list[tuple[Path, str]]:
    """Images that lie in a class folder, with its name."""
    places = ((file, file.relative_to(listing.root).parts) for file in listing.images())
    return [(file, parts[0]) for file, parts in places if len(parts) > 1]
