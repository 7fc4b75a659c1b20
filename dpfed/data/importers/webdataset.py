"""Imports WebDataset: tar archives in which the files of a sample are adjacent and share a name."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access
from dpfed.data.importers.archives import DamagedArchive, members, name_of
from dpfed.data.importers.classes import class_of, number_classes, without_class
from dpfed.data.importers.conversions import without_links
from dpfed.data.importers.listing import suffix
from dpfed.data.importers.side_files import side_file
from dpfed.data.importers.source import UNIT_NAMES, Importer, Item, Source, Unreadable, spaced, unit_of
from dpfed.data.importers.splits import holds, is_part, split_files, split_of
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError

_NAME = re.compile(r"(?:\./)?((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key, and all that follows the file name's first dot
_IMAGES = frozenset(extension.removeprefix(".") for extension in EXTENSIONS)
_TEXTS = frozenset({"txt", "json", "cls"})
_CAPTION_KEYS = ("caption", "captions", "text", "title")
_LABEL_KEYS = ("label", "cls", "class")


@dataclass
class _Sample:
    """What the files of one sample hold.

    Attributes:
        key: Name that the files share, up to its first dot.
        images: Contents of the image files.
        captions: Captions of the sample.
        label: Class, as the sample writes it; empty: it names no class.
        unit_key: Key in the sample's JSON file under which the unit stands; ``None``: the file gives no unit.
        unit: Name of the unit; ``None``: there is none.
        fault: Reason why the sample cannot be read; ``None``: it can be read.
        unused: Extensions of files, and keys of JSON files, that are not used.
        members: Headers of the files in the archive.
    """

    key: str
    images: list[bytes] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    label: str = ""
    unit_key: str | None = None
    unit: str | None = None
    fault: str | None = None
    unused: list[str] = field(default_factory=list)
    members: list[tarfile.TarInfo] = field(default_factory=list)

    @property
    def beside(self) -> bool:
        """Whether the files are not a sample, because their names show that they lie beside records and hold no records."""
        return all(side_file(member.name.rsplit("/", 1)[-1]) is not None for member in self.members)

    def read(self, extension: str, content: bytes | str | None) -> None:
        """Adds a file of the sample.

        Args:
            extension: Extension of the file, in small letters and without a dot.
            content: Bytes of the file; or a string, the reason why the file is not read; ``None``: the file is not used.
        """
        if content is None:
            self.unused.append(f".{extension}")
            return
        if isinstance(content, str):
            self.fault = f"its .{extension} is {content}"
            return
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
        for name in _LABEL_KEYS:
            label = value.get(name)
            if isinstance(label, list | dict):
                self.unused.append(f".json: {name}")
            elif not self.label:
                self.label = label if isinstance(label, str) else class_of(label) or ""
        self.unit_key = next((name for name in UNIT_NAMES if unit_of(value.get(name))), None)
        self.unit = unit_of(value[self.unit_key]) if self.unit_key else None

    def _add_captions(self, value: object) -> None:
        for text in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
            if isinstance(text, str) and text.strip() and text.strip() not in self.captions:
                self.captions.append(text.strip())


@dataclass
class _Survey:
    """Facts about all samples, which must be known before the first sample is stored.

    Attributes:
        samples: Number of samples.
        captioned: Whether any sample has a caption.
        classes: Number of samples of each class, as the samples write it.
        unit_keys: Keys in the samples' JSON files under which units stand.
        damaged: Name of each damaged archive, with what is wrong.
        unused: Number of samples with each extension, or key of a JSON file, that is not used.
        unread: Members of archives that would be lost.
        passed_over: Names of members that hold no records, with their counts.
        linked: Archives that contain links.
        folders: One folder for each split, from the first archive whose folders' names contain several splits; empty: there is
            no such archive.
        held_out: Folder whose name contains validation or test although its archive has another split; empty: there is none.
    """

    samples: int = 0
    captioned: bool = False
    classes: Counter[str] = field(default_factory=Counter)
    unit_keys: set[str] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)
    unused: Counter[str] = field(default_factory=Counter)
    unread: list[Unreadable] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    linked: list[Path] = field(default_factory=list)  # archives with links
    folders: tuple[str, ...] = ()
    held_out: str = ""


class WebDatasetImporter(Importer):
    """Imports a .tar archive, whose records are for training, or a folder of .tar archives.

    In a folder, the names of the archives and of their folders may contain splits. If no name does, all records are for
    training.

    Files that share a name up to its first dot are a sample:

    * one image, such as a .jpg or a .png (`dpfed.data.decoding.EXTENSIONS` lists the extensions);
    * perhaps captions: a .txt with one caption in each line, or a .json that is a list of captions or an object with captions
      under ``caption``, ``captions``, ``text`` or ``title``;
    * perhaps a class: a .cls, or ``label``, ``cls`` or ``class`` in the .json;
    * perhaps a unit: ``unit``, ``person_id``, ``patient_id`` or ``pid`` in the .json.

    The archives are read twice, from front to back, and never unpacked. The id of a record consists of the record's split, the
    names of numbered folders above the archive, the name of the archive, and the name of the sample.
    """

    name = "webdataset"
    options = ("splits",)
    layout = "a .tar archive, or a folder of .tar archives, with 000.jpg and 000.txt or 000.json (captions), 000.cls (class)"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` is a tar archive, or a folder of tar archives without images beside them."""
        if path.is_dir():
            return holds(path, {".tar"}, access) and not holds(path, EXTENSIONS, access)
        return path.is_file() and suffix(path) == ".tar"

    def open(self, path: Path, access: Access | None = None, splits: int | None = None) -> Source:
        """Reads the texts of all archives. The images are read when the source's iterator is used.

        Args:
            path: Archive, or folder of archives.
            access: Paths that the import may read.
            splits: 0: no folder in an archive is a split; other numbers are refused. ``None``: the source is refused if the
                names of folders in an archive contain several splits, or a held-out split that is not the archive's own.

        Raises:
            UserError: If there are no archives or no samples, an archive may not be read, splits or classes are not clear, or
                `splits` is a number other than 0.
        """
        if splits:
            raise UserError(
                f"--splits {splits} is for folders of image files; for archives, give 0 or leave it out. [tar-splits-level]"
            )
        access = access or Access.to(path)
        dataset = split_files(path, ".tar", self.layout, access)
        shards = dataset.files
        survey = _Survey()
        for done, (split, file) in enumerate(shards, start=1):
            _survey(file, split, survey)
            if access.surveyed is not None:
                access.surveyed(done, len(shards))
        if not survey.samples:
            reason = f" ({survey.damaged[0]})" if survey.damaged else ""
            raise UserError(f"there are no samples in the archives of {path}{reason}; expected {self.layout}. [tar-no-samples]")
        if splits is None and survey.folders:
            raise UserError(
                f"folders in an archive name several splits ({', '.join(survey.folders)}), but all records of an archive "
                "belong to one split: unpack the archives and import the folder, pack an archive for each split, or give "
                "--splits 0 to take the split from each archive's file name. [tar-several-splits]"
            )
        if splits is None and survey.held_out:
            raise UserError(
                f"the name of a folder in an archive contains a held-out split ({survey.held_out}), but the archive counts as "
                "another split. "
                f"If the archive's split is right, `dpfed data import {shlex.quote(str(path))} DEST --format {self.name} "
                "--splits 0` imports the records; if not, unpack the archive and import the folder. [tar-folder-held-out]"
            )
        numbers, names = number_classes(survey.classes)
        records = (_records(file, split, f"{split}/{_called(file, path)}", numbers) for split, file in shards)
        return Source(
            kind="image-text" if survey.captioned else "image",
            records=itertools.chain.from_iterable(records),
            label_names={"label": names} if names else {},
            splits=frozenset(split for split, _ in shards),
            total=survey.samples + len(survey.damaged),  # a damaged archive is one more record that cannot be read
            unit_name=next((called for key, called in UNIT_NAMES.items() if key in survey.unit_keys), None),
            unused=tuple(survey.unused),
            unread=[*dataset.unread(), *survey.unread],
            passed_over=survey.passed_over + Counter(dataset.passed_over),
            advice=_about_links(survey),
            notice=spaced(without_class("label", survey.classes), dataset.notice),
        )


def _about_links(survey: _Survey) -> str:
    if not survey.linked:
        return ""
    first = survey.linked[0]
    others = f" (do the same with {len(survey.linked) - 1:,} other archives)" if len(survey.linked) > 1 else ""
    return f"`{without_links(first)}` writes the archive with files in place of its links{others}; import the new archive."


def _records(shard: Path, split: str, name: str, classes: dict[str, int]) -> Iterator[Item]:
    """Yields the records of an archive.

    Args:
        shard: Path of the archive.
        split: Split of the archive.
        name: Prefix of the records' ids.
        classes: Number of each class.

    Raises:
        UserError: If the files of a sample are not adjacent, or two samples have the same name.
    """
    seen = set()
    try:
        for sample in _samples(shard, _IMAGES | _TEXTS):
            if sample.key in seen:
                raise UserError(
                    f"{shard}: the files of the sample {sample.key!r} are not adjacent, or two samples have this name; "
                    "sort the archive by name, or rename one. [tar-sample-torn]"
                )
            seen.add(sample.key)
            yield _record(f"{name}/{sample.key}", sample, split, classes)
    except DamagedArchive as error:
        yield Unreadable(name, f"archive {error} (after {len(seen):,} samples, at byte {error.at:,})")


def _called(archive: Path, source: Path) -> str:
    """Returns the prefix of the names of an archive's records, such as ``part-0/cats``.

    It consists of the numbered folders above the archive (`is_part`) and the archive's name.

    Args:
        archive: Path of the archive.
        source: Path of the source, the archive itself or a folder above it.
    """
    folders = archive.relative_to(source).parts[:-1] if source.is_dir() else ()
    return "/".join([*(folder for folder in folders if is_part(folder)), name_of(archive)])


def _survey(shard: Path, split: str, survey: _Survey) -> None:
    """Reads the texts of an archive, and adds the facts about its samples to the survey.

    Args:
        shard: Path of the archive.
        split: Split of the archive.
        survey: Facts about all samples, to which this function adds.
    """
    last = ""
    folders: dict[str, str] = {}  # split that a folder's name contains -> the first such folder
    try:
        for sample in _samples(
            shard, _TEXTS, functools.partial(_stray, place=f"{split}/{name_of(shard)}", shard=shard, survey=survey)
        ):
            survey.samples += 1
            survey.unused.update(kind for kind in sample.unused if kind.removeprefix(".") not in _IMAGES)
            survey.captioned |= bool(sample.captions)
            survey.classes[sample.label] += 1
            folder = sample.key.rpartition("/")[0]
            if folder != last and (spoken := split_of(Path(folder))):
                folders.setdefault(spoken, f"{shard.name}: {folder}")
                if spoken not in (split, "train"):
                    survey.held_out = f"{shard.name}: {folder}"
            last = folder
            survey.unit_keys.update([sample.unit_key] if sample.unit_key else [])
    except DamagedArchive as error:  # it is met again, and counted, when the records are read
        survey.damaged.append(f"{shard.name} {error}")
    if len(folders) > 1 and not survey.folders:
        survey.folders = tuple(folders.values())


def _stray(member: tarfile.TarInfo, place: str, shard: Path, survey: _Survey) -> None:
    """Adds to the survey a member of an archive that is not a file of a sample.

    Args:
        member: Header of the member.
        place: Split and name of the archive, for messages.
        shard: Path of the archive.
        survey: Facts about all samples, to which this function adds.
    """
    name = member.name.rsplit("/", 1)[-1]
    if member.isdir():
        return
    if member.isreg() and (counts_as := side_file(name)) is not None:
        survey.passed_over[counts_as] += 1
        return
    if (member.issym() or member.islnk()) and shard not in survey.linked:
        survey.linked.append(shard)
    linked = member.issym() or member.islnk()
    special = "a link in an archive is not followed" if linked else "a device or pipe in an archive is not read"
    reason = "files without a suffix are not read" if member.isreg() else special
    survey.unread.append(Unreadable(f"{place}/{member.name}", reason))


def _record(id: str, sample: _Sample, split: str, numbers: dict[str, int]) -> Item:
    only = f" that is read, only {' and '.join(sorted(set(sample.unused)))}" if sample.unused else ""
    fault = sample.fault or (f"no image{only}" if not sample.images else "several images" if len(sample.images) > 1 else None)
    if fault:
        return Unreadable(id, fault)
    label = class_of(sample.label)
    labels = {"label": numbers[label]} if label is not None else {}
    [image] = sample.images
    return RecordInput(id, image, tuple(sample.captions), labels, split, sample.unit)


def _samples(
    shard: Path, extensions: Collection[str], stray: Callable[[tarfile.TarInfo], None] = lambda member: None
) -> Iterator[_Sample]:
    """Yields the samples of an archive.

    A sample is yielded only after the next header, or the archive's end, was read: its last file is then known to be whole.

    Args:
        shard: Path of the archive.
        extensions: Extensions of the files that are read, without their dots.
        stray: Function that is called with every member that is not a file of a sample.
    """
    groups = itertools.groupby(_members(shard, extensions, stray), key=lambda entry: entry[0])
    for key, files in groups:
        sample = _Sample(key)
        for _, extension, member, content in files:
            sample.members.append(member)
            sample.read(extension, content)
        if not sample.beside:
            yield sample
            continue
        for member in sample.members:
            stray(member)


def _members(
    shard: Path, extensions: Collection[str], stray: Callable[[tarfile.TarInfo], None]
) -> Iterator[tuple[str, str, tarfile.TarInfo, bytes | str | None]]:
    """Yields (key, extension, header, content) of each file of a sample; see `members`, and `_samples` for the arguments."""
    for member, content in members(
        shard, lambda member: (named := _NAME.fullmatch(member.name)) is not None and named[2].lower() in extensions
    ):
        named = _NAME.fullmatch(member.name)
        if not named or not member.isreg():
            stray(member)
            continue
        yield named[1], named[2].lower(), member, content
