"""Folders of DICOM files: pixels through a window, patients as units. This does not de-identify them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpfed.data.decoding import EXTENSIONS
from dpfed.data.importers.access import Access, NotRead
from dpfed.data.importers.dicom_pixels import MAGIC, PREAMBLE, READ, picture, quiet, transfer_syntax
from dpfed.data.importers.folder_splits import class_numbers, place
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.source import FileRecord, Importer, Item, Source, Unreadable, unit_of
from dpfed.data.importers.splits import holds, refuse_outside
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError

NOTICE = (
    "DICOM: only pixels, the path of the file and a hash of the PatientID are kept. This does not de-identify them: names that "
    "are burned into pixels or stand in paths stay."
)
_ENDINGS = frozenset({".dcm", ".dicom", ".ima"})
_WALKED = "DICOMDIR"  # a table of contents
_TAGS = ["PatientID"]


class DicomImporter(Importer):
    """``root/class/x.dcm``, also below split folders, as images of other kinds: a record is one file of one frame.

    A file's values go through the modality's rescaling and one window to eight bits: the window of the import, or the first of
    the file, or the whole range of its values. The unit is the PatientID.
    """

    name = "dicom"
    options = ("window", "splits")
    layout = "a folder of .dcm files of one frame each, or of class folders with such files"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether there are DICOM files by their suffix, and no images of other kinds."""
        return path.is_dir() and holds(path, _ENDINGS, access) and not holds(path, EXTENSIONS, access)

    def open(
        self,
        path: Path,
        access: Access | None = None,
        window: tuple[float, float] | None = None,
        splits: int | None = None,
    ) -> Source:
        """Reads every file's PatientID, and streams the records.

        Args:
            path: the folder.
            access: what may be read.
            window: centre and width for all files, in the modality's units (of a CT: Hounsfield); ``None``: each file's own.
            splits: which folder below it is the split; see `dpfed.data.importers.folder_splits.place`.
        """
        require_pydicom()
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; the 'dicom' importer expects {self.layout}.")
        access = access or Access.to(path)
        listing = list_files(path, access)
        files = [file for file in listing.files if suffix(file) in _ENDINGS or not suffix(file) and _begins_so(file)]
        contents = [file for file in files if file.name.upper() == _WALKED]
        files = [file for file in files if file not in set(contents)]
        if not files:
            refuse_outside(listing)
            raise UserError(f"there are no DICOM files in {path}; the 'dicom' importer expects {self.layout}.")
        for _ in contents:
            listing.passed_over[_WALKED] += 1
        units = {file: _patient(file) for file in files}
        named = any(units.values())
        nobodys = [file for file in files if named and not units[file] and units[file] is not None]
        placed = place(path, files, listing.files, splits)
        names, labels = class_numbers(placed)

        def records() -> Iterator[Item]:
            for one in placed:
                if one.file in lost:
                    continue
                id = one.file.relative_to(path).as_posix()
                yield DicomFile(id, one.file, (), labels(one), one.split, units[one.file] or None, window=window)

        lost = set(nobodys)
        without = [Unreadable(file.relative_to(path).as_posix(), "no PatientID, which other files have") for file in nobodys]
        return Source(
            kind="image",
            records=records(),
            label_names=names,
            splits=frozenset(one.split for one in placed),
            total=len(files) - len(lost),
            unit_name="patient" if named else None,
            unread=[*listing.others([*files, *contents]), *without],
            passed_over=listing.passed_over,
            notice=NOTICE,
        )


@dataclass(frozen=True)
class DicomFile(FileRecord):
    """The record of one DICOM file; its image is eight bits of grey or of colours.

    Attributes:
        window: see `DicomImporter.open`.
    """

    window: tuple[float, float] | None = None

    def read(self, access: Access) -> RecordInput | Unreadable:
        """The record with its image, as far as the file may and can be read."""
        plain = super().read(access)
        if isinstance(plain, Unreadable):
            return plain
        assert isinstance(plain.image, bytes)
        try:
            return replace(plain, image=picture(plain.image, self.window))
        except NotRead as error:
            return Unreadable(self.place or self.id, str(error))


def _begins_so(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(PREAMBLE + len(MAGIC))[PREAMBLE:] == MAGIC
    except OSError:
        return False


def _patient(file: Path) -> str | None:
    """A file's PatientID; empty: it names none; ``None``: it cannot be read, which is said when its turn comes."""
    from pydicom import dcmread

    try:
        if not file.is_file() or not _begins_so(file):
            return None
        with quiet(), file.open("rb") as content:
            if str(transfer_syntax(content)) not in READ:
                return None
            return unit_of(dcmread(file, stop_before_pixels=True, specific_tags=_TAGS).get("PatientID")) or ""
    except Exception:  # see `picture`
        return None


def parsed_window(text: str) -> tuple[float, float]:
    """Centre and width, as ``40,400``.

    Raises:
        UserError: when it is none.
    """
    try:
        centre, width = map(float, text.split(","))
    except ValueError:
        centre, width = math.nan, math.nan
    if not (math.isfinite(centre) and math.isfinite(width) and width >= 1):
        raise UserError(
            f"--window {text}: expected a centre and a width of at least 1, such as 40,400 for soft tissue in a CT."
        )
    return centre, width


def require_pydicom() -> None:
    """Refuses DICOM where pydicom is missing.

    Raises:
        UserError: naming the extra.
    """
    try:
        import pydicom  # noqa: F401
    except ImportError as error:
        raise UserError("DICOM files need pydicom: pip install 'dpfed[dicom]'.") from error
