"""WebDataset: tar archives in which the files of a sample stand together and share a name."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.importers.folder import image_files
from dpfed.data.importers.source import (
    UNIT_NAMES,
    Importer,
    Item,
    Source,
    Unreadable,
    number_classes,
    split_files,
    unit_of,
)
from dpfed.data.pixels import EXTENSIONS
from dpfed.data.writing import RecordInput
from dpfed.errors import UserError

_NAME = re.compile(r"(?:\./)?((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key, and all after the first dot of the file name
_IMAGES = frozenset(extension.removeprefix(".") for extension in EXTENSIONS)
_TEXTS = frozenset({"txt", "json", "cls"})
_CAPTION_KEYS = ("caption", "captions", "text", "title")


class _DamagedArchive(Exception):
    """An archive that ends too early; the message is the reason, in a few words."""


@dataclass
class _Sample:
    """The files of one sample, and what their texts say."""

    key: str
    images: list[bytes] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    label: str = ""
    unit_key: str | None = None
    unit: str | None = None
    fault: str | None = None

    def read(self, extension: str, content: bytes) -> None:
        if extension in _IMAGES:
            self.images.append(content)
            return
        try:
            text = content.decode("utf-8-sig")
            if extension == "txt":
                self._add_captions(text.splitlines())
            elif extension == "cls":
                self.label = text.strip()
            else:
                self._read_json(json.loads(text))
        except (ValueError, RecursionError):
            self.fault = f"its .{extension} cannot be read"

    def _read_json(self, value: object) -> None:
        if not isinstance(value, dict):
            self._add_captions(value)
            return
        for name in _CAPTION_KEYS:
            self._add_captions(value.get(name))
        self.unit_key = next((name for name in UNIT_NAMES if unit_of(value.get(name))), None)
        self.unit = unit_of(value[self.unit_key]) if self.unit_key else None

    def _add_captions(self, value: object) -> None:
        for text in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
            if isinstance(text, str) and text.strip() and text.strip() not in self.captions:
                self.captions.append(text.strip())


@dataclass
class _Survey:
    """What must be known of all samples before the first is stored."""

    samples: int = 0
    captioned: bool = False
    classes: set[str] = field(default_factory=set)
    unit_keys: set[str] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)


class WebDatasetImporter(Importer):
    """A .tar archive, or a folder of them whose names, or whose folders' names, speak of train, validation or test.

    Files that share a name up to its first dot are a sample: an image (any of `EXTENSIONS`), captions (.txt, one in a
    line; .json with ``caption``, ``captions``, ``text`` or ``title``, or a list), a class (.cls) and, in the JSON, perhaps a
    ``unit``, ``person_id``, ``patient_id`` or ``pid``. The archives are read twice, front to back, and never unpacked. The
    id of a record is its split, archive and name.
    """

    name = "webdataset"
    layout = "a .tar archive, or a folder of .tar archives, with 000.jpg and 000.txt or 000.json (captions), 000.cls (class)"

    def recognises(self, path: Path) -> bool:
        """Whether it is a .tar file, or a folder of them without images beside."""
        if path.is_dir():
            return next(path.rglob("*.tar"), None) is not None and next(image_files(path), None) is None
        return path.is_file() and path.suffix.lower() == ".tar"

    def open(self, path: Path) -> Source:
        """Reads the texts (not the images) of all archives and streams the records."""
        shards = split_files(path, ".tar", self.layout)
        survey = _survey(shards)
        if not survey.samples:
            reason = f" ({survey.damaged[0]})" if survey.damaged else ""
            raise UserError(f"there are no samples in the archives of {path}{reason}; expected {self.layout}.")
        numbers, names = number_classes(survey.classes)
        return Source(
            kind="image-text" if survey.captioned else "image",
            records=_records(shards, numbers),
            label_names={"label": names} if names else {},
            splits=frozenset(split for split, _ in shards),
            total=survey.samples + len(survey.damaged),  # a damaged archive is one more that cannot be read
            unit_name=next((called for key, called in UNIT_NAMES.items() if key in survey.unit_keys), None),
        )


def _survey(shards: list[tuple[str, Path]]) -> _Survey:
    survey = _Survey()
    for _, shard in shards:
        try:
            for sample in _samples(shard, _TEXTS):
                survey.samples += 1
                survey.captioned |= bool(sample.captions)
                survey.classes.add(sample.label)
                survey.unit_keys.update([sample.unit_key] if sample.unit_key else [])
        except _DamagedArchive as error:  # it is met again, and counted, when the records are read
            survey.damaged.append(f"{shard.name} {error}")
    return survey


def _records(shards: list[tuple[str, Path]], numbers: dict[object, int]) -> Iterator[Item]:
    for split, shard in shards:
        name, seen = f"{split}/{shard.stem}", set()
        try:
            for sample in _samples(shard, _IMAGES | _TEXTS):
                if sample.key in seen:
                    raise UserError(
                        f"{shard}: the files of the sample {sample.key!r} do not stand together; sort the archive by name."
                    )
                seen.add(sample.key)
                yield _record(f"{name}/{sample.key}", sample, split, numbers)
        except _DamagedArchive as error:
            yield Unreadable(name, f"archive {error} (after {len(seen):,} samples)")


def _record(id: str, sample: _Sample, split: str, numbers: dict[object, int]) -> Item:
    fault = sample.fault or ("no image" if not sample.images else "several images" if len(sample.images) > 1 else None)
    if fault:
        return Unreadable(id, fault)
    labels = {"label": numbers[sample.label]} if sample.label in numbers else {}
    return RecordInput(id, sample.images[0], tuple(sample.captions), labels, split, sample.unit)


def _samples(shard: Path, extensions: Collection[str]) -> Iterator[_Sample]:
    """Samples of an archive whose last file is known to be whole; only files with these extensions are read."""
    sample: _Sample | None = None
    for key, extension, content in _members(shard, extensions):
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(key)
        if content is not None:
            sample.read(extension, content)
    if sample is not None:
        yield sample


def _members(shard: Path, extensions: Collection[str]) -> Iterator[tuple[str, str, bytes | None]]:
    """Yields (key, extension, content or ``None``) and raises `_DamagedArchive` where the archive is not whole."""
    try:
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # public, and untyped; tarfile would remember every member
                named = _NAME.fullmatch(member.name)
                if named and member.isreg():
                    extension = named[2].lower()
                    opened = archive.extractfile(member) if extension in extensions else None
                    yield named[1], extension, None if opened is None else opened.read()
            end = archive.offset
        # tarfile takes a header that it cannot read for the end; the real end is a block of zeros.
        with shard.open("rb") as file:
            file.seek(end)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise _DamagedArchive("is cut off or damaged")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise _DamagedArchive(f"cannot be read ({error})") from error
