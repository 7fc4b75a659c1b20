"""Imports folders of images with a text file of captions beside each image."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from dpfed.data.importers.access import Access, NotRead
from dpfed.data.importers.folder_splits import class_numbers, merged_splits, place, with_persons, without_shards
from dpfed.data.importers.listing import Listing, list_files, suffix
from dpfed.data.importers.source import FileRecord, Importer, Item, Source, Unreadable, spaced
from dpfed.errors import UserError

_TRIED = 16  # texts that are looked at to recognise captions
_LARGEST = 2**20  # bytes of a text of captions


class CaptionedFolderImporter(Importer):
    """Imports images such as ``root/x.jpg`` whose captions are the lines of ``root/x.txt``.

    The images may also lie in class folders, split folders or folders of persons, as in `FolderImporter`. An image
    without such a text is an unreadable record. Files such as ``x.json`` are passed over if ``x.txt`` exists, because
    img2dataset writes both. The id of a record is the path of its image below the root.
    """

    name = "captioned-folder"
    options = ("splits",)
    layout = "a folder of images with a .txt of the same name beside each, a caption per line (x.jpg, x.txt)"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether at least half of a folder's images have a text of the same name.

        One of the first 16 texts must contain a letter, because texts of numbers alone are not captions.
        """
        access = access or Access.to(path)
        return path.is_dir() and mostly_captioned(list_files(path, access), access)

    def open(self, path: Path, access: Access | None = None, splits: int | None = None) -> Source:
        """Lists the images and texts. Records are read when the source's iterator is used.

        Args:
            path: Folder of the images.
            access: Paths that the import may read.
            splits: Level of the split folders, 1 for those directly in `path`; see `dpfed.data.importers.folder_splits.place`.

        Raises:
            UserError: If `path` is not a folder or cannot be read, there are no texts or the first 16 contain no letter, the
                folders do not fit `splits`, no image is for training, or the splits or classes of the images are not clear.
        """
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: expected {self.layout}. [captioned-folder-not-one]")
        access = access or Access.to(path)
        listing = list_files(path, access)
        images = listing.images()
        texts = _texts(listing, images)
        if not texts:
            raise UserError(
                f"no image in {path} has a .txt of the same name beside it: expected {self.layout}. [captioned-folder-none]"
            )
        if _numbers_alone(texts.values(), access):
            raise UserError(
                f"the texts beside the images in {path} hold no words, as {next(iter(texts.values())).name} shows (YOLO writes "
                f"boxes as numbers into such texts): expected {self.layout}. `dpfed data import {shlex.quote(str(path))} DEST "
                "--format folder --skip-broken` imports the images alone. [captioned-folder-numbers]"
            )
        beside = _beside(listing, texts)
        listing.passed_over.update(f"*{suffix(file)} beside an image and its .txt" for file in beside)
        placed, shards = without_shards(place(path, images, listing.files, splits), listing.passed_over)
        placed, persons = with_persons(path, placed)
        names, labels = class_numbers(placed)

        def records() -> Iterator[Item]:
            for image, unit in zip(placed, persons.units, strict=True):
                id = image.file.relative_to(path).as_posix()
                captions = _captions(texts.get(image.file), access)
                if isinstance(captions, str):
                    yield Unreadable(id, captions)
                else:
                    yield FileRecord(id, image.file, captions, labels(image), image.split, unit)

        return Source(
            kind="image-text",
            records=records(),
            label_names=names,
            splits=frozenset(image.split for image in placed),
            total=len(placed),
            unread=listing.others([*images, *texts.values(), *beside]),
            passed_over=listing.passed_over,
            unit_name=persons.unit_name,
            notice=spaced(merged_splits(placed), shards, persons.notice),
        )


def mostly_captioned(listing: Listing, access: Access) -> bool:
    """Returns whether at least half of the images have a text file of the same name.

    One of the first 16 texts must contain a letter. Texts of numbers alone are not captions: YOLO writes the boxes of an image
    into such a text.

    Args:
        listing: Contents of the folder.
        access: Paths that the import may read.
    """
    images = listing.images()
    texts = _texts(listing, images)
    return bool(texts) and 2 * len(texts) >= len(images) and not _numbers_alone(texts.values(), access)


def _numbers_alone(texts: Iterable[Path], access: Access) -> bool:
    """Returns whether there is no letter in the first 16 texts."""
    for text in itertools.islice(texts, _TRIED):
        with contextlib.suppress(NotRead):
            if any(letter.isalpha() for letter in _content(text, access).decode("utf-8", "replace")):
                return False
    return True


def _texts(listing: Listing, images: list[Path]) -> dict[Path, Path]:
    """Returns the text file of each image that has a text file of the same name."""
    there = {file for file in listing.files if suffix(file) == ".txt"}
    return {image: text for image in images if (text := image.with_suffix(".txt")) in there}


def _beside(listing: Listing, texts: dict[Path, Path]) -> list[Path]:
    """Returns the JSON files that have the same names as the images with texts."""
    there = {file for file in listing.files if suffix(file) == ".json"}
    return list(dict.fromkeys(file for image in texts if (file := image.with_suffix(".json")) in there))


def _captions(text: Path | None, access: Access) -> tuple[str, ...] | str:
    """Returns the captions of a text file, without repetitions; or, as one string, the reason why there are none."""
    if text is None:
        return "no .txt of the same name beside it"
    try:
        lines = _content(text, access).decode("utf-8-sig").splitlines()
    except NotRead as error:
        return f"its .txt is not read: {error}"
    except UnicodeDecodeError:
        return "its .txt is not UTF-8"
    captions = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    return captions or "its .txt is empty"


def _content(text: Path, access: Access) -> bytes:
    """Reads the bytes of a text file.

    Raises:
        NotRead: If `Access.read` raises it, or the file is larger than 1 MiB.
    """
    with contextlib.suppress(OSError):
        if text.stat().st_size > _LARGEST:
            raise NotRead("larger than 1 MiB")
    return access.read(text)
