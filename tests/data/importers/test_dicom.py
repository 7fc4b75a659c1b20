"""DICOM files: real ones, written by pydicom, and hostile ones."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfed.data.importers import detect, import_records
from dpfed.data.importers.access import NotRead
from dpfed.data.importers.dicom import parsed_window, picture, quiet
from dpfed.data.store.record import record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

pydicom = pytest.importorskip("pydicom")
EXPLICIT, JPEG, JPEG_2000, RLE, JPEG_LS = (f"1.2.840.10008.1.2.{kind}" for kind in ("1", "4.50", "4.90", "5", "4.80"))
CT = np.arange(-1000, 1000, 20, dtype=np.int16).reshape(10, 10)  # Hounsfield units


def dicom(values=CT, syntax=EXPLICIT, packed=None, **tags) -> bytes:
    """A file, as a scanner writes it."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", generate_uid()
    meta.TransferSyntaxUID = syntax
    data = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID, data.PatientName = (
        meta.MediaStorageSOPClassUID,
        meta.MediaStorageSOPInstanceUID,
        "DOE^J",
    )
    data.Rows, data.Columns = values.shape[:2]
    data.SamplesPerPixel = 1 if values.ndim == 2 else 3
    data.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    data.BitsAllocated = data.BitsStored = 8 * values.itemsize
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, int(values.dtype.kind == "i")
    if values.ndim == 3:
        data.PlanarConfiguration = 0
    data.PixelData = values.tobytes() if packed is None else encapsulate([packed])
    for name, value in tags.items():
        setattr(data, name, value)
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        pydicom.dcmwrite(out, data, enforce_file_format=True)
    return out.getvalue()


def packed(values, format, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(values).save(out, format, **options)
    return out.getvalue()


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / (name.replace("__", "/") + ".dcm")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_a_files_first_window_is_applied_as_the_standard_says(function, kind):
    """The formulas of DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3."""
    tags = {"WindowCenter": [40, 400], "WindowWidth": [400, 2000], "VOILUTFunction": function}
    content = dicom(CT + 1024, RescaleSlope=1, RescaleIntercept=-1024, PhotometricInterpretation=kind, **tags)
    share = {
        "LINEAR": (CT - 39.5) / 399 + 0.5,
        "LINEAR_EXACT": (CT - 40) / 400 + 0.5,
        "SIGMOID": 1 / (1 + np.exp(-4 * (CT - 40) / 400)),
    }[function]
    expected = np.rint(share.clip(0, 1) * 255)
    assert picture(content).dtype == np.uint8
    assert np.array_equal(picture(content), 255 - expected if kind == "MONOCHROME1" else expected)


def test_a_given_window_wins_and_padding_never_counts():
    content = dicom(WindowCenter=40, WindowWidth=400, VOILUTFunction="SIGMOID")
    assert np.array_equal(picture(content, (0, 1001)), np.rint((CT / 1000 + 0.5 + 0.5 / 1000).clip(0, 1) * 255))
    padded = np.where(CT == CT.min(), -2000, CT).astype(np.int16)
    seen = picture(dicom(padded, PixelPaddingValue=-2000))
    assert seen[0, 1] == 0 and seen[-1, -1] == 255 and picture(dicom(padded))[0, 1] > 80


def test_colours_and_packed_pixels_are_read():
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert (picture(dicom(colours)) == colours).all()
    lossless = packed(colours, "JPEG2000", irreversible=False)
    assert (picture(dicom(colours, JPEG_2000, lossless)) == colours).all()
    assert (picture(dicom(colours, JPEG_2000, lossless, PhotometricInterpretation="YBR_RCT")) == colours).all()
    flat = np.full((8, 8, 3), (200, 90, 30), np.uint8)
    jpeg = dicom(flat, JPEG, packed(flat, "JPEG", quality=95), PhotometricInterpretation="YBR_FULL_422")
    assert np.abs(picture(jpeg).astype(int) - flat).max() <= 4
    grey = flat[..., 1].copy()
    assert abs(int(picture(dicom(grey, JPEG, packed(grey, "JPEG", quality=95)), (127.5, 256))[0, 0]) - 90) <= 2
    data = pydicom.dcmread(io.BytesIO(dicom(CT)))
    data.compress(RLE)
    out = io.BytesIO()
    data.save_as(out)
    assert (picture(out.getvalue()) == picture(dicom(CT))).all()


REFUSED = {
    "no DICOM file": (lambda: b"\x89PNG" + bytes(200), "DICOM"),
    "empty": (lambda: b"", "DICOM"),
    "cut": (lambda: dicom()[:400], ""),
    "values cut": (lambda: dicom()[:-50], ""),
    "header without rows": (lambda: dicom(Rows=None), "Rows"),
    "more pixels than values": (lambda: dicom(Rows=65535, Columns=65535), "4,294,836,225 pixels"),
    "a JPEG of other sides": (
        lambda: dicom(np.zeros((4, 8), np.uint8), JPEG, packed(np.zeros((8, 4), np.uint8), "JPEG")),
        "4 x 8",
    ),
    "no pixels": (lambda: dicom(PixelData=None), "no pixels"),
    "empty pixels": (lambda: dicom(PixelData=b""), "no pixels"),
    "frames": (lambda: dicom(NumberOfFrames=100), "100 frames"),
    "an enhanced file": (lambda: dicom(SharedFunctionalGroupsSequence=[pydicom.Dataset()]), "enhanced"),
    "a lookup table": (lambda: dicom(VOILUTSequence=[pydicom.Dataset()]), "--window"),
    "a palette": (lambda: dicom(CT.astype(np.uint8), PhotometricInterpretation="PALETTE COLOR"), "PALETTE COLOR"),
    "odd colours": (lambda: dicom(np.zeros((4, 4, 3), np.uint8), SamplesPerPixel=4), ""),
    "deep colours": (lambda: dicom(np.zeros((4, 4, 3), np.uint16)), "8 bits"),
    "a rescaling to one value": (lambda: dicom(RescaleSlope=0, RescaleIntercept=5), "rescaling"),
    "a rescaling without end": (lambda: dicom(RescaleSlope="1e400", RescaleIntercept=0), "rescaling"),
    "a window of nothing": (lambda: dicom(WindowCenter=0, WindowWidth=0), "Window Width"),
    "a window without end": (lambda: dicom(WindowCenter=0, WindowWidth="1e999"), "window"),
    "no decoder": (lambda: dicom(syntax=JPEG_LS, packed=b"\xff\xd8\xff\xf7" + bytes(50)), "no decoder"),
    "no JPEG": (lambda: dicom(np.zeros((8, 8), np.uint8), JPEG, b"\xff\xd8" + bytes(60)), ""),
}


def test_a_picture_of_padding_alone_is_refused():
    with pytest.raises(NotRead, match="every pixel is padding"):
        picture(dicom(np.full_like(CT, -2000, np.int16), PixelPaddingValue=-2000))


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_shown_is_a_reason_and_no_black_picture(what):
    content, reason = REFUSED[what]
    with pytest.raises(NotRead) as refused:
        picture(content())
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["40", "40,x", "40,0", "nan,400", "1,2,3"])
def test_what_is_no_window_is_refused(text):
    with pytest.raises(UserError) as refused:
        parsed_window(text)
    assert refused.value.code == "dicom-window" and parsed_window("40,400") == (40, 400)


def test_patients_are_units_folders_classes_and_headers_gone(tmp_path, capsys, caplog):
    source = write(
        tmp_path / "in",
        ill__a=dicom(PatientID="P-1"),
        ill__b=dicom(CT.T.copy(), PatientID="P-1 "),
        well__a=dicom(PatientID="P-2"),
    )
    (source / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    told: list[str] = []
    caplog.set_level(logging.DEBUG)
    assert detect(source) == "dicom"
    report = import_records(source, tmp_path / "store", say=told.append, window=(40, 400))
    store = RecordStore.open(tmp_path / "store")
    assert report.kind == "image" and report.unit_name == "patient" and report.passed_over == {"DICOMDIR": 1}
    assert store.ids(np.arange(3)) == ["ill/a.dcm", "ill/b.dcm", "well/a.dcm"]
    assert store.units.tolist() == [record_key(name) for name in ("P-1", "P-1", "P-2")]
    assert store.label_names == {"label": ["ill", "well"]} and store.labels["label"].tolist() == [0, 0, 1]
    assert (store.images(np.array([0]), 10)[0].numpy() == picture(dicom(), (40, 400))).all()
    assert "does not de-identify" in told[0]
    everything = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"DOE" not in everything and b"P-1" not in everything
    assert not any(record.name.startswith("pydicom") for record in caplog.records) and not capsys.readouterr().err


def test_some_files_without_a_patient_are_refused_or_left_out(tmp_path):
    mixed = write(tmp_path / "mixed", a=dicom(PatientID="P-1"), b=dicom(PatientID=""), c=dicom(PatientID="P-2"))
    with pytest.raises(UserError, match=r"no PatientID, which other files have \(1\): b.dcm"):
        import_records(mixed, tmp_path / "s")
    report = import_records(mixed, tmp_path / "s", skip_broken=True)
    assert report.counts["train"] == 2 and report.skipped == [("b.dcm", "no PatientID, which other files have")]
    nobody = write(tmp_path / "nobody", a=dicom(), b=dicom(CT.T.copy()))
    assert import_records(nobody, tmp_path / "t").unit_name is None


@pytest.mark.parametrize("window", [(40,), (40, 0), ("x", 1), "40,400", "48", {40, 400}, 40, (40, float("inf"))])
def test_a_window_that_cannot_be_one_is_refused_before_a_file_is_read(tmp_path, window):
    with pytest.raises(UserError, match="dicom-window"):
        import_records(write(tmp_path / "in", a=dicom()), tmp_path / "s", window=window)


def test_a_window_may_be_an_array(tmp_path):
    source = write(tmp_path / "in", a=dicom())
    stores = [tmp_path / "tuple", tmp_path / "array"]
    for store, window in zip(stores, ((40, 400), np.array([40, 400])), strict=True):
        import_records(source, store, window=window)
    one, other = (RecordStore.open(store).encoded(np.array([0])) for store in stores)
    assert one == other


def test_no_logger_of_pydicom_speaks(caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("pydicom", "pydicom.pixels.decoders.base"):
        logger = logging.getLogger(name)
        with quiet():
            logger.error("DOE^J")
        assert not caplog.records
        logger.error("heard again")
        assert len(caplog.records) == 1
        caplog.clear()
