"""Folders of DICOM files: pixels through a window, patients as units. This is no de-identification."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from dpfed.data.importers.access import Access, NotRead
from dpfed.data.importers.listing import list_files, suffix
from dpfed.data.importers.source import FileRecord, Importer, Item, Source, Unreadable, unit_of
from dpfed.data.importers.splits import holds, refuse_outside
from dpfed.data.store.record import RecordInput
from dpfed.data.views.pixels import EXTENSIONS, MOST_PIXELS
from dpfed.errors import UserError

if TYPE_CHECKING:
    from pydicom import Dataset

NOTICE = (
    "DICOM: only pixels, the path of the file and a hash of the PatientID are kept. This is no de-identification: names that "
    "are burned into pixels or stand in paths stay."
)
_ENDINGS = frozenset({".dcm", ".dicom", ".ima"})
_MAGIC, _PREAMBLE = b"DICM", 128  # bytes before it
_WALKED = "DICOMDIR"  # a table of contents
_TAGS = ["PatientID"]
# Transfer syntaxes that are read: how the pixels lie in the file. A deflated file could grow a thousandfold.
_PLAIN = {"1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"}
_JPEG = {f"1.2.840.10008.1.2.4.{kind}" for kind in (50, 51, 90, 91)}
_RLE = "1.2.840.10008.1.2.5"
_READ = {*_PLAIN, *_JPEG, _RLE}
_MOST_RUNS = 1 << 24  # pixels of an image of run lengths, which may hold 64 times as many as it says before that is noticed
_DEEPEST = 255  # of eight bits


class DicomImporter(Importer):
    """``root/class/x.dcm``: a record is one file of one frame; its class is the first folder below the root, if there is one.

    A file's values go through the modality's rescaling and one window to eight bits: the window of the import, or the first of
    the file, or the whole range of its values. The unit is the PatientID.
    """

    name = "dicom"
    layout = "a folder of .dcm files of one frame each, or of class folders with such files"

    def recognises(self, path: Path, access: Access | None = None) -> bool:
        """Whether there are DICOM files by their suffix, and no images of other kinds."""
        return path.is_dir() and holds(path, _ENDINGS, access) and not holds(path, EXTENSIONS, access)

    def open(self, path: Path, access: Access | None = None, window: tuple[float, float] | None = None) -> Source:
        """Reads every file's PatientID, and streams the records.

        Args:
            path: the folder.
            access: what may be read.
            window: centre and width for all files, in the modality's units (of a CT: Hounsfield); ``None``: each file's own.
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
        folders = {file: file.relative_to(path).parts[:-1] for file in files}
        classes = sorted({parts[0] for parts in folders.values() if parts})
        numbers = {name: number for number, name in enumerate(classes)}

        def records() -> Iterator[Item]:
            for file in files:
                if file in lost:
                    continue
                labels = {"label": numbers[folders[file][0]]} if folders[file] else {}
                id = file.relative_to(path).as_posix()
                yield DicomFile(id, file, (), labels, "train", units[file] or None, window=window)

        lost = set(nobodys)
        without = [Unreadable(file.relative_to(path).as_posix(), "no PatientID, which other files have") for file in nobodys]
        return Source(
            kind="image",
            records=records(),
            label_names={"label": classes} if classes else {},
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


def picture(content: bytes, window: tuple[float, float] | None = None) -> np.ndarray:
    """The image of a DICOM file.

    Args:
        content: of the file.
        window: see `DicomImporter.open`.

    Returns:
        uint8, ``(H, W)`` or ``(H, W, 3)``.

    Raises:
        NotRead: saying why.
    """
    try:
        with _quiet():
            return _picture(_parsed(content), window)
    except NotRead:
        raise
    except Exception as error:  # pydicom's readers raise almost anything on damaged bytes, RecursionError among it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotRead(f"not readable as DICOM: {reason[:100]}") from error


def _parsed(content: bytes) -> Dataset:
    """The file's data, after a look at how they are packed: pydicom would unpack a deflated file in one piece."""
    from pydicom import dcmread

    if content[_PREAMBLE : _PREAMBLE + len(_MAGIC)] != _MAGIC:
        raise NotRead("no DICOM file")
    syntax = _syntax(io.BytesIO(content))
    if syntax is None or str(syntax) not in _READ:
        called = "in no named way" if syntax is None else f"as {syntax.name}"
        raise NotRead(f"its pixels are packed {called}, which is not read; unpack them with `gdcmconv --raw`")
    return dcmread(io.BytesIO(content))


def _syntax(content: BinaryIO) -> Any:
    """How a file is packed, from its first group, which is always packed in one way."""
    from pydicom.filereader import read_dataset

    content.seek(_PREAMBLE + len(_MAGIC))
    meta = read_dataset(content, False, True, stop_when=lambda tag, kind, length: tag >> 16 != 2)
    return meta.get("TransferSyntaxUID")


def _picture(data: Dataset, window: tuple[float, float] | None) -> np.ndarray:
    from pydicom.pixels import apply_color_lut, apply_modality_lut, pixel_array

    if "PixelData" not in data:
        raise NotRead("no pixels" if "FloatPixelData" not in data else "floating-point pixels")
    _check_size(data)
    values = np.asarray(pixel_array(data))  # colours come as RGB
    if values.shape[:2] != (data.Rows, data.Columns):
        raise NotRead(f"pixels of shape {values.shape}, and the header says {data.Rows} x {data.Columns}")
    kind = str(data.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        values = np.asarray(apply_color_lut(values, data))
        return (values >> 8 if values.dtype == np.uint16 else values).astype(np.uint8)
    if values.ndim == 3:
        if values.shape[2] != 3 or values.dtype != np.uint8:
            raise NotRead(f"colours of {values.shape[2]} channels in {values.dtype}, expected 3 of 8 bits")
        return values
    if kind not in ("MONOCHROME1", "MONOCHROME2"):
        raise NotRead(f"photometric interpretation {kind}")
    shown = _shown(np.asarray(apply_modality_lut(values, data), np.float64), data, window)
    grey = np.rint(np.clip(shown, 0, 1) * _DEEPEST).astype(np.uint8)
    return _DEEPEST - grey if kind == "MONOCHROME1" else grey


def _check_size(data: Dataset) -> None:
    """Refuses what would fill the memory, before anything is unpacked."""
    frames, pixels = int(data.get("NumberOfFrames") or 1), int(data.Rows) * int(data.Columns)
    if frames != 1:
        raise NotRead(f"{frames:,} frames in one file, expected one; split them, or choose one")
    if not 0 < pixels <= MOST_PIXELS:
        raise NotRead(f"{pixels:,} pixels, expected from 1 to {MOST_PIXELS:,}")
    syntax = str(data.file_meta.TransferSyntaxUID)
    if syntax == _RLE:
        expected = pixels * int(data.SamplesPerPixel) * int(data.BitsAllocated) // 8
        if pixels > _MOST_RUNS or len(data.PixelData) > 1.1 * expected + 1024:
            raise NotRead("run lengths of more pixels than it says, or too many")
    elif syntax in _JPEG:
        from pydicom.encaps import get_frame

        frame = get_frame(data.PixelData, 0, number_of_frames=1)
        with Image.open(io.BytesIO(frame)) as image:  # reads the header alone
            if image.size != (data.Columns, data.Rows):
                raise NotRead(f"a JPEG of {image.size[0]} x {image.size[1]} in a file of {data.Columns} x {data.Rows}")


def _shown(values: np.ndarray, data: Dataset, window: tuple[float, float] | None) -> np.ndarray:
    """Values as shares of full brightness, by the formulas of DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3."""
    from pydicom.pixels import apply_voi_lut

    function = str(data.get("VOILUTFunction") or "LINEAR") if window is None else "LINEAR"
    given = window or _own_window(data)
    if given is None and data.get("VOILUTSequence"):
        bits = int(data.VOILUTSequence[0].LUTDescriptor[2])
        return np.asarray(apply_voi_lut(values.astype(np.int64), data), np.float64) / (2**bits - 1)
    if given is None:
        low, high = float(values.min()), float(values.max())
        return (values - low) / (high - low) if high > low else np.zeros_like(values)
    centre, width = given
    if not (math.isfinite(centre) and math.isfinite(width)) or width < (1 if function == "LINEAR" else 1e-9):
        raise NotRead(f"a window of centre {centre:g} and width {width:g}")
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700))))
    if function == "LINEAR_EXACT":
        return (values - centre) / width + 0.5
    return (values - (centre - 0.5)) / max(width - 1, 1e-9) + 0.5


def _own_window(data: Dataset) -> tuple[float, float] | None:
    """The first window that a file names."""
    found = []
    for name in ("WindowCenter", "WindowWidth"):
        value = data.get(name)
        if value is None or value == "":
            return None
        found.append(float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value))
    return found[0], found[1]


def _begins_so(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(_PREAMBLE + len(_MAGIC))[_PREAMBLE:] == _MAGIC
    except OSError:
        return False


def _patient(file: Path) -> str | None:
    """A file's PatientID; empty: it names none; ``None``: it cannot be read, which is said when its turn comes."""
    from pydicom import dcmread

    try:
        if not file.is_file() or not _begins_so(file):
            return None
        with _quiet(), file.open("rb") as content:
            if str(_syntax(content)) not in _READ:
                return None
            return unit_of(dcmread(file, stop_before_pixels=True, specific_tags=_TAGS).get("PatientID")) or ""
    except Exception:  # see `picture`
        return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Pydicom says what is odd in a file, with its values, which are private."""
    logger = logging.getLogger("pydicom")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.disabled = before


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
