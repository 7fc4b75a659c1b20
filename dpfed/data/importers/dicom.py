"""Imports folders of DICOM files: converts their pixels to eight bits, and makes patients the units.

The import does not de-identify the files.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from dpfed.data.decoding import EXTENSIONS, MOST_PIXELS
from dpfed.data.importers.access import Access, NotRead
from dpfed.data.importers.folder_splits import class_numbers, merged_splits, place, with_persons, without_persons
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.source import FileRecord, Importer, Item, Source, Unreadable, spaced, unit_of
from dpfed.data.importers.splits import holds, refuse_outside
from dpfed.data.store.record import RecordInput
from dpfed.errors import UserError

NOTICE = (
    "DICOM: only pixels, the path of the file and a hash of the PatientID are kept. The import does not de-identify the files: "
    "names that are burned into pixels or stand in paths stay."
)
_ENDINGS = frozenset({".dcm", ".dicom", ".ima"})
_CONTENTS = "DICOMDIR"  # a table of contents


class DicomImporter(Importer):
    """Imports files such as ``root/class/x.dcm``, which may also lie below split folders. A record is one file of one frame.

    The modality's rescaling is applied to grey values, then a window maps these values to eight bits: the window that the user
    gives; if there is none, the first window of the file; if there is none either, the whole range of the file's values.
    Colours of eight bits stay as they are. The PatientID names the unit of a record. If no file has a PatientID, the unit is
    the person whom the file's path names (`dpfed.data.importers.persons`).
    """

    name = "dicom"
    options = ("window", "splits")
    layout = "a folder of .dcm files of one frame each, or of class folders with such files"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Returns whether `path` is a folder that holds files with a suffix of DICOM, such as ``.dcm``, and no other images."""
        return path.is_dir() and holds(path, _ENDINGS, access) and not holds(path, EXTENSIONS, access)

    def open(
        self, path: Path, access: Access | None = None, window: tuple[float, float] | None = None, splits: int | None = None
    ) -> Source:
        """Reads every file's PatientID. Pixels are read when the source's iterator is used.

        Args:
            path: Folder of the files.
            access: Paths that the import may read.
            window: Centre and width of the window for all files, in the modality's units (in a CT: Hounsfield units); ``None``:
                each file's own window or, if a file has none, the whole range of its values.
            splits: Level of the split folders, 1 for those directly in `path`; see `dpfed.data.importers.folder_splits.place`.

        Raises:
            UserError: If pydicom is not installed, `window` is not two finite numbers or its width is below 1, `path` is not a
                folder or cannot be read, no DICOM files lie below it, the folders do not fit `splits`, no file is for training,
                or the splits or classes of the files are not clear.
        """
        try:
            import pydicom  # noqa: F401
        except ImportError as error:
            raise UserError("DICOM files need pydicom: pip install 'dpfed[dicom]'. [dicom-extra]") from error
        if window is not None:
            window = _window(window if isinstance(window, tuple | list | np.ndarray) else (), window)
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; the 'dicom' importer expects {self.layout}. [dicom-folder]")
        listing = list_files(path, access or Access.to(path))
        dicom_files = [file for file in listing.files if suffix(file) in _ENDINGS or not suffix(file) and _begins_so(file)]
        files = [file for file in dicom_files if file.name.upper() != _CONTENTS]
        if not files:
            refuse_outside(listing)
            raise UserError(f"there are no DICOM files in {path}; the 'dicom' importer expects {self.layout}. [dicom-none]")
        listing.passed_over.update({_CONTENTS: len(dicom_files) - len(files)} if dicom_files != files else {})
        units = {file: _patient(file) for file in files}
        named = any(units.values())
        placed = place(path, files, listing.files, splits)
        unit_name, notice = "patient" if named else None, ""
        if named:
            placed = without_persons(placed)
        else:
            placed, persons = with_persons(path, placed)
            unit_name, notice = persons.unit_name, persons.notice
            units = dict(zip((image.file for image in placed), persons.units, strict=True))
        names, labels = class_numbers(placed)

        def records() -> Iterator[Item]:
            for image in placed:
                id, unit = image.file.relative_to(path).as_posix(), units[image.file]
                if named and unit == "":
                    yield Unreadable(id, "no PatientID, which other files have")
                else:
                    yield DicomFile(id, image.file, (), labels(image), image.split, unit or None, window=window)

        return Source(
            kind="image",
            records=records(),
            label_names=names,
            splits=frozenset(image.split for image in placed),
            total=len(files),
            unit_name=unit_name,
            unread=listing.others(dicom_files),
            passed_over=listing.passed_over,
            notice=spaced(NOTICE, merged_splits(placed), notice),
        )


@dataclass(frozen=True)
class DicomFile(FileRecord):
    """The record of one DICOM file. Its image is grey or in colour (three channels), with eight bits per channel.

    Attributes:
        window: Centre and width of the window, see `DicomImporter.open`.
    """

    window: tuple[float, float] | None = None  # see `DicomImporter.open`

    def read(self, access: Access) -> RecordInput | Unreadable:
        """Returns the record with its image, or the reason why the file is not read."""
        plain = super().read(access)
        try:
            return plain if isinstance(plain, Unreadable) else replace(plain, image=picture(plain.image, self.window))
        except NotRead as error:
            return Unreadable(self.place or self.id, str(error))


def _begins_so(file: Path) -> bool:
    from pydicom.misc import is_dicom

    with contextlib.suppress(OSError):
        return file.is_file() and is_dicom(file)
    return False


def _patient(file: Path) -> str | None:
    """Returns the PatientID in a file. Empty: the file has no PatientID. ``None``: the file cannot be read.

    A file that cannot be read is reported later, when its pixels are read.
    """
    from pydicom import dcmread

    with contextlib.suppress(Exception), quiet():  # see `picture`
        if _begins_so(file):
            return unit_of(dcmread(file, stop_before_pixels=True, specific_tags=["PatientID"]).get("PatientID")) or ""
    return None


def picture(content: Any, window: tuple[float, float] | None = None) -> np.ndarray:
    """Returns the picture of a DICOM file, seen through a window: uint8 ``(H, W)`` or ``(H, W, 3)``.

    Args:
        content: Bytes of the file.
        window: Centre and width of the window, in the modality's units; ``None``: the window of the file or, if the file has
            none, the whole range of its values.

    Raises:
        NotRead: If the bytes are not a DICOM file of one frame, in grey or in colours of eight bits. If the file has too many
            pixels, is an enhanced file, has a rescaling of slope 0, or has a window or values that are not finite. If `window`
            is ``None``, and the file has a lookup table (VOI LUT) in place of a window, or has no window and only padding. If
            this machine cannot decode the file's pixels.
    """
    from pydicom import dcmread

    try:
        with quiet():
            return _picture(dcmread(io.BytesIO(content)), window)
    except NotRead:
        raise
    except Exception as error:  # pydicom's readers raise almost anything on damaged bytes, RecursionError among it
        reason = str(error).split(". ")[0] or type(error).__name__
        raise NotRead(f"not readable as DICOM: {textwrap.shorten(reason, 160, placeholder=' ...')}") from error


def _picture(data: Any, window: tuple[float, float] | None) -> np.ndarray:
    from pydicom import Dataset
    from pydicom.encaps import get_frame
    from pydicom.pixels import apply_modality_lut, apply_windowing, get_decoder

    if int(data.get("NumberOfFrames") or 1) != 1:
        raise NotRead(f"{data.NumberOfFrames} frames in the file, expected a single frame: split the file into single frames")
    if not data.get("PixelData"):
        raise NotRead("no pixels, or floating-point pixels")
    if not 0 < (pixels := (data.get("Rows") or 0) * (data.get("Columns") or 0)) <= MOST_PIXELS:
        raise NotRead(f"Rows x Columns is {pixels:,} pixels, expected from 1 to {MOST_PIXELS:,}")
    decoder = get_decoder(data.file_meta.TransferSyntaxUID)
    if not decoder.is_available:
        raise NotRead(
            f"its pixels are packed as {decoder.UID.name}, and this machine has no decoder for that: `pip install "
            "'pylibjpeg[all]'`, or unpack the files with `gdcmconv --raw`"
        )
    if decoder.UID.is_encapsulated:
        frame = io.BytesIO(get_frame(data.PixelData, 0, number_of_frames=1))
        with contextlib.suppress(UnidentifiedImageError), Image.open(frame) as image:  # reads the header alone
            if image.size != (data.Columns, data.Rows):
                raise NotRead(
                    f"an image of {image.size[0]} x {image.size[1]} pixels, but Columns x Rows is {data.Columns} x {data.Rows}"
                )
    stored, how = decoder.as_array(data)
    kind = how["photometric_interpretation"]
    if kind == "RGB" and stored.dtype == np.uint8 and stored.shape == (data.Rows, data.Columns, 3):
        return stored
    if kind not in ("MONOCHROME1", "MONOCHROME2") or stored.shape != (data.Rows, data.Columns):
        raise NotRead(f"{kind} pixels of shape {stored.shape} in {stored.dtype}, expected grey, or colours of 8 bits")
    if "SharedFunctionalGroupsSequence" in data or "PerFrameFunctionalGroupsSequence" in data:
        raise NotRead("an enhanced file, whose rescaling and window are not read; convert it to a classic one")
    values = np.asarray(apply_modality_lut(stored, data), np.float64)
    if data.get("RescaleSlope") == 0 or not np.isfinite(values).all():
        raise NotRead("a rescaling that gives every pixel the same value, or values that are not finite")
    given = window or (data.get("WindowCenter"), data.get("WindowWidth"))
    if None not in given:
        if not all(np.isfinite(np.array(number, float)).all() for number in given):
            raise NotRead("a window that is not finite")
        view = Dataset()  # pydicom spreads values over the range of `BitsStored` bits
        view.PhotometricInterpretation, view.BitsStored, view.PixelRepresentation = "MONOCHROME2", 8, 0
        view.WindowCenter, view.WindowWidth = given
        view.VOILUTFunction = (None if window else data.get("VOILUTFunction")) or "LINEAR"
        values = apply_windowing(values, view)
    elif data.get("VOILUTSequence"):
        raise NotRead("a lookup table (VOI LUT) in place of a window; give --window CENTRE,WIDTH")
    else:
        seen = values[stored != data.get("PixelPaddingValue")]  # padding fills up what the scanner did not see
        if not seen.size:
            raise NotRead("every pixel is padding")
        values = (values - seen.min()) / (np.ptp(seen) or 1) * 255
    grey = np.rint(np.clip(values, 0, 255)).astype(np.uint8)
    return 255 - grey if kind == "MONOCHROME1" else grey


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences pydicom inside a ``with`` block, because its warnings quote values of a file, which are private."""
    logger = logging.getLogger("pydicom")  # `disabled` does not stop the records of its decoders' loggers
    before = logger.disabled, logger.propagate, logger.handlers
    logger.disabled, logger.propagate, logger.handlers = True, False, [logging.NullHandler()]
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.disabled, logger.propagate, logger.handlers = before


def parsed_window(text: str) -> tuple[float, float]:
    """Reads the centre and the width of a window from a string such as ``40,400``.

    Raises:
        UserError: If the string is not two finite numbers, or the second number is below 1.
    """
    return _window(text.split(","), text)


def _window(numbers: Any, given: object) -> tuple[float, float]:
    with contextlib.suppress(TypeError, ValueError):
        centre, width = map(float, numbers)
        if math.isfinite(centre) and math.isfinite(width) and width >= 1:
            return centre, width
    raise UserError(
        f"--window {given}: expected a centre and a width of at least 1, such as 40,400, or (40, 400) in Python, for soft "
        "tissue in a CT. [dicom-window]"
    )
