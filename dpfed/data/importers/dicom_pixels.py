"""What a DICOM file shows: its pixels, through the rescaling of its modality and one window, as eight bits."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import textwrap
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from dpfed.data.decoding import MOST_PIXELS
from dpfed.data.importers.access import NotRead

if TYPE_CHECKING:
    from pydicom import Dataset

MAGIC, PREAMBLE = b"DICM", 128  # bytes before it
# Transfer syntaxes that are read: how the pixels lie in the file. A deflated file could grow a thousandfold.
_PLAIN = {"1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"}
_JPEG = {f"1.2.840.10008.1.2.4.{kind}" for kind in (50, 51, 90, 91)}
_RLE = "1.2.840.10008.1.2.5"
READ = {*_PLAIN, *_JPEG, _RLE}
_MOST_RUNS = 1 << 24  # pixels of an image of run lengths, which may hold 64 times as many as it says before that is noticed
_NEEDED = (
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "BitsStored",
    "PixelRepresentation",
)
_OF_A_FRAME = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction")
_DEEPEST = 255  # of eight bits
_LONGEST_REASON = 160  # characters of what pydicom says of a file


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
        with quiet():
            return _picture(_parsed(content), window)
    except NotRead:
        raise
    except Exception as error:  # pydicom's readers raise almost anything on damaged bytes, RecursionError among it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotRead(f"not readable as DICOM: {textwrap.shorten(reason, _LONGEST_REASON, placeholder=' ...')}") from error


def _parsed(content: bytes) -> Dataset:
    """The file's data, after a look at how they are packed: pydicom would unpack a deflated file in one piece."""
    from pydicom import dcmread

    if content[PREAMBLE : PREAMBLE + len(MAGIC)] != MAGIC:
        raise NotRead("no DICOM file")
    syntax = transfer_syntax(io.BytesIO(content))
    if syntax is None or str(syntax) not in READ:
        called = "in no named way" if syntax is None else f"as {syntax.name}"
        raise NotRead(f"its pixels are packed {called}, which is not read; unpack them with `gdcmconv --raw`")
    return _with_its_frame(dcmread(io.BytesIO(content)))


def _with_its_frame(data: Dataset) -> Dataset:
    """The data, with what an enhanced file says of its only frame where other files say it (DICOM PS3.3, C.7.6.16).

    Without it, a window in Hounsfield units would look at numbers that are none.
    """
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for macro in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            for group in (data.get(groups) or ())[:1]:
                for item in (group.get(macro) or ())[:1]:
                    data.update({item[name].tag: item[name] for name in _OF_A_FRAME if name in item})
    return data


def transfer_syntax(content: BinaryIO) -> Any:
    """How a file is packed, from its first group, which is always packed in one way."""
    from pydicom.filereader import read_dataset

    content.seek(PREAMBLE + len(MAGIC))
    meta = read_dataset(content, False, True, stop_when=lambda tag, kind, length: tag >> 16 != 2)
    return meta.get("TransferSyntaxUID")


def _picture(data: Dataset, window: tuple[float, float] | None) -> np.ndarray:
    from pydicom.pixels import apply_color_lut, apply_modality_lut, pixel_array

    if not data.get("PixelData"):
        raise NotRead("floating-point pixels" if {"FloatPixelData", "DoubleFloatPixelData"} & set(data.dir()) else "no pixels")
    missing = [name for name in _NEEDED if data.get(name) in (None, "")]
    if missing:
        raise NotRead(f"its header lacks {' and '.join(missing)}")
    _check_size(data)
    _require_decoder(data)
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
    rescaled = np.asarray(apply_modality_lut(values, data), np.float64)
    if data.get("RescaleSlope") == 0 or not np.isfinite(rescaled).all():
        raise NotRead("a rescaling whose values are all alike or not finite")
    shown = _shown(rescaled, data, window, _padding(values, data))
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


def _require_decoder(data: Dataset) -> None:
    """Refuses packed pixels that nothing on this machine unpacks: pydicom leaves that to other packages."""
    from pydicom.pixels import get_decoder

    syntax = data.file_meta.TransferSyntaxUID
    if str(syntax) not in _PLAIN and not get_decoder(syntax).is_available:
        raise NotRead(
            f"its pixels are packed as {syntax.name}, and this machine has no decoder for that: `pip install "
            "'pylibjpeg[all]'`, or unpack the files with `gdcmconv --raw`"
        )


def _padding(values: np.ndarray, data: Dataset) -> np.ndarray:
    """Which stored values fill up what the scanner did not see (DICOM PS3.3, C.7.5.1.1.2)."""
    first = data.get("PixelPaddingValue")
    if first is None:
        return np.zeros(values.shape, bool)
    last = data.get("PixelPaddingRangeLimit")
    low, high = sorted((int(first), int(first if last is None else last)))
    return np.asarray((values >= low) & (values <= high))


def _shown(values: np.ndarray, data: Dataset, window: tuple[float, float] | None, padding: np.ndarray) -> np.ndarray:
    """Values as shares of full brightness, by the formulas of DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3."""
    from pydicom.pixels import apply_voi_lut

    function = str(data.get("VOILUTFunction") or "LINEAR") if window is None else "LINEAR"
    given = window or _own_window(data)
    if given is None and data.get("VOILUTSequence"):
        bits = int(data.VOILUTSequence[0].LUTDescriptor[2])
        return np.asarray(apply_voi_lut(values.astype(np.int64), data), np.float64) / (2**bits - 1)
    if given is None:
        seen = values if padding.all() else values[~padding]
        low, high = float(seen.min()), float(seen.max())
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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pydicom says what is odd in a file, with its values, which are private."""
    logger = logging.getLogger("pydicom")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.disabled = before
