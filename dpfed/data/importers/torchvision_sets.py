"""Data sets that torchvision knows, read from where torchvision keeps them; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfed.data.importers.source import Importer, Item, Source, file_record
from dpfed.data.writing import RecordInput
from dpfed.errors import UserError

_READ_AT_ONCE = 256  # patches of PCam


class Cifar10Importer(Importer):
    """CIFAR-10 in its Python pickles."""

    name = "cifar10"
    layout = "cifar-10-batches-py/ with data_batch_1 .. data_batch_5, test_batch and batches.meta"

    def recognises(self, path: Path) -> bool:
        """Whether the folder of the batches is there."""
        return (path / "cifar-10-batches-py").is_dir()

    def open(self, path: Path) -> Source:
        """Reads both splits (180 MB)."""
        from torchvision.datasets import CIFAR10

        sets = {split: _load(self, CIFAR10, path, train=split == "train") for split in ("train", "test")}
        return _from_arrays({split: (part.data, part.targets) for split, part in sets.items()}, sets["train"].classes)


class FashionMnistImporter(Importer):
    """Fashion-MNIST in its IDX files."""

    name = "fashion-mnist"
    layout = "FashionMNIST/raw/ with the four unpacked *-ubyte files (gunzip them)"

    def recognises(self, path: Path) -> bool:
        """Whether the raw folder is there."""
        return (path / "FashionMNIST" / "raw").is_dir()

    def open(self, path: Path) -> Source:
        """Reads both splits (55 MB)."""
        from torchvision.datasets import FashionMNIST

        sets = {split: _load(self, FashionMNIST, path, train=split == "train") for split in ("train", "test")}
        return _from_arrays({split: (part.data.numpy(), part.targets) for split, part in sets.items()}, FashionMNIST.classes)


class EuroSatImporter(Importer):
    """EuroSAT, RGB; it has no official splits, so everything is for training unless records are held out."""

    name = "eurosat"
    layout = "eurosat/2750/ with ten class folders of .jpg files"

    def recognises(self, path: Path) -> bool:
        """Whether the class folders are there."""
        return (path / "eurosat" / "2750").is_dir()

    def open(self, path: Path) -> Source:
        """Lists the files and streams them."""
        from torchvision.datasets import EuroSAT

        files = _load(self, EuroSAT, path)
        return _from_files({"train": files.samples}, path, files.classes)


class ImageNetImporter(Importer):
    """ImageNet-1k as torchvision unpacks it; its validation images are the validation split."""

    name = "imagenet"
    layout = "meta.bin, train/ and val/ with one folder per WordNet id"

    def recognises(self, path: Path) -> bool:
        """Whether torchvision's table of class names is there."""
        return (path / "meta.bin").is_file() and (path / "train").is_dir()

    def open(self, path: Path) -> Source:
        """Lists the files and streams them."""
        if not self.recognises(path):  # torchvision would look for the archives and unpack them into the user's folder
            raise _missing(self, path, "for class folders without meta.bin use the importer 'folder'")
        from torchvision.datasets import ImageNet

        folders = {"train": "train", "validation": "val"}
        sets = {
            split: _load(self, ImageNet, path, split=folder) for split, folder in folders.items() if (path / folder).is_dir()
        }
        # torchvision numbers the folders of each split by themselves; a partial copy must not shift the numbers.
        synonyms = {wnid: names for part in sets.values() for wnid, names in zip(part.wnids, part.classes, strict=True)}
        numbers = {wnid: number for number, wnid in enumerate(sorted(synonyms))}
        samples = {
            split: [(file, numbers[part.wnids[target]]) for file, target in part.samples] for split, part in sets.items()
        }
        return _from_files(samples, path, [", ".join(synonyms[wnid]) for wnid in sorted(synonyms)])


class PcamImporter(Importer):
    """PatchCamelyon in its HDF5 files, read a few hundred patches at a time."""

    name = "pcam"
    layout = "pcam/ with camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5 (unpacked)"

    def recognises(self, path: Path) -> bool:
        """Whether the training patches are there."""
        return _pcam_file(path, "train", "x").is_file()

    def open(self, path: Path) -> Source:
        """Opens the files and streams the patches."""
        try:
            import h5py
        except ImportError as error:
            raise UserError("reading PCam needs the package h5py; install it with `pip install dpfed[pcam]`.") from error
        splits = {"train": "train", "validation": "valid", "test": "test"}
        for file in (_pcam_file(path, part, axis) for part in splits.values() for axis in "xy"):
            if not file.is_file():
                raise _missing(self, path, f"{file.name} is missing")
        try:
            counts = {split: len(h5py.File(_pcam_file(path, part, "x"))["x"]) for split, part in splits.items()}
        except (OSError, KeyError) as error:
            raise _missing(self, path, f"the files cannot be read ({error})") from error

        def records() -> Iterator[Item]:
            for split, part in splits.items():
                with h5py.File(_pcam_file(path, part, "x")) as images, h5py.File(_pcam_file(path, part, "y")) as targets:
                    for start in range(0, counts[split], _READ_AT_ONCE):
                        labels = targets["y"][start : start + _READ_AT_ONCE].reshape(-1)
                        for row, image in enumerate(images["x"][start : start + _READ_AT_ONCE]):
                            yield RecordInput(f"{split}/{start + row}", image, (), {"tumor": int(labels[row])}, split)

        return Source("image", records(), {"tumor": ["normal", "tumor"]}, frozenset(splits), sum(counts.values()))


def _pcam_file(path: Path, part: str, axis: str) -> Path:
    return path / "pcam" / f"camelyonpatch_level_2_split_{part}_{axis}.h5"


def _load(importer: Importer, dataset: Any, path: Path, **options: Any) -> Any:
    try:
        return dataset(str(path), **options)
    except (RuntimeError, OSError, ValueError) as error:
        raise _missing(importer, path, "files are missing or damaged") from error


def _missing(importer: Importer, path: Path, why: str) -> UserError:
    return UserError(f"cannot read {importer.name} from {path} ({why}): expected {path}/{importer.layout}.")


def _from_arrays(parts: dict[str, tuple[Any, Any]], classes: list[str]) -> Source:
    def records() -> Iterator[Item]:
        for split, (images, targets) in parts.items():
            for row, (image, target) in enumerate(zip(images, targets, strict=True)):
                yield RecordInput(f"{split}/{row}", image, (), {"label": int(target)}, split)

    total = sum(len(images) for images, _ in parts.values())
    return Source("image", records(), {"label": list(classes)}, frozenset(parts), total)


def _from_files(parts: dict[str, list[tuple[str, int]]], root: Path, classes: list[str]) -> Source:
    def records() -> Iterator[Item]:
        for split, samples in parts.items():
            for file, target in samples:
                id = Path(file).relative_to(root).as_posix()
                yield file_record(id, Path(file), (), {"label": target}, split)

    return Source("image", records(), {"label": list(classes)}, frozenset(parts), sum(map(len, parts.values())))
