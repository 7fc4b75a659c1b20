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
from dpfed.data.importers.dicom_pixels import picture
from dpfed.data.store.record import record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

pydicom = pytest.importorskip("pydicom")
EXPLICIT, DEFLATED, JPEG, JPEG_2000, RLE, JPEG_LS = (
    f"1.2.840.10008.1.2.{kind}" for kind in ("1", "1.99", "4.50", "4.90", "5", "4.80")
)
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
def test_a_files_own_window_gives_what_pydicom_gives(function):
    from pydicom.pixels import apply_modality_lut, apply_windowing

    content = dicom(
        CT + 1024,
        RescaleSlope=1,
        RescaleIntercept=-1024,
        WindowCenter=[40, 400],
        WindowWidth=[400, 2000],
        VOILUTFunction=function,
    )
    data = pydicom.dcmread(io.BytesIO(content))
    theirs = apply_windowing(apply_modality_lut(data.pixel_array, data), data)
    low, high = -1024 - 2**15, -1024 + 2**15 - 1  # what pydicom's output spans
    expected = (theirs - low) / (high - low) * 255
    assert np.abs(picture(content).astype(float) - expected).max() <= 1
    assert picture(content).dtype == np.uint8


@pytest.mark.parametrize("groups", ["SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"])
def test_an_enhanced_file_says_of_its_frame_what_others_say_of_themselves(groups):
    def enhanced(**macros):
        group = pydicom.Dataset()
        for macro, tags in macros.items():
            item = pydicom.Dataset()
            for name, value in tags.items():
                setattr(item, name, value)
            setattr(group, macro, pydicom.Sequence([item]))
        return dicom(CT + 1024, NumberOfFrames=1, **{groups: pydicom.Sequence([group])})

    units, window = {"RescaleSlope": 1, "RescaleIntercept": -1024}, {"WindowCenter": 40, "WindowWidth": 400}
    plain = dicom(CT + 1024, **units, **window)
    given = enhanced(PixelValueTransformationSequence=units, FrameVOILUTSequence=window)
    assert np.array_equal(picture(given), picture(plain)) and np.array_equal(picture(given, (0, 50)), picture(plain, (0, 50)))
    assert np.array_equal(picture(enhanced(), (40, 400)), picture(dicom(CT + 1024), (40, 400)))


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"PixelData": None}, "no pixels"),
        ({"PixelData": b""}, "no pixels"),
        ({"Rows": None}, "its header lacks Rows"),
        (
            {"BitsAllocated": None, "PhotometricInterpretation": ""},
            "its header lacks PhotometricInterpretation and BitsAllocated",
        ),
        ({"RescaleSlope": "1e400", "RescaleIntercept": 0}, "a rescaling whose values are all alike or not finite"),
        ({"RescaleSlope": 0, "RescaleIntercept": 5}, "a rescaling whose values are all alike or not finite"),
    ],
)
def test_a_header_that_lacks_what_it_needs_is_named_and_no_black_picture(tags, reason):
    with pytest.raises(NotRead) as refused:
        picture(dicom(**tags))
    assert str(refused.value) == reason


def test_colours_palettes_and_packed_pixels_are_read():
    from pydicom.encaps import encapsulate  # noqa: F401

    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert (picture(dicom(colours)) == colours).all()
    assert (picture(dicom(colours, JPEG_2000, packed(colours, "JPEG2000", irreversible=False))) == colours).all()
    grey = np.full((8, 8), 90, np.uint8)
    jpeg = picture(dicom(grey, JPEG, packed(grey, "JPEG", quality=95)), (127.5, 256))
    assert abs(int(jpeg[0, 0]) - 90) <= 2
    data = pydicom.dcmread(io.BytesIO(dicom(CT)))
    data.compress(RLE)
    out = io.BytesIO()
    data.save_as(out)
    assert (picture(out.getvalue()) == picture(dicom(CT))).all()
    ramp = np.arange(256, dtype=np.uint16) << 8
    table = {f"{name}PaletteColorLookupTableDescriptor": [256, 0, 16] for name in ("Red", "Green", "Blue")} | {
        f"{name}PaletteColorLookupTableData": ramp.tobytes() for name in ("Red", "Green", "Blue")
    }
    assert (picture(dicom(grey, PhotometricInterpretation="PALETTE COLOR", **table)) == 90).all()


HOSTILE = {
    "no DICOM file": lambda: b"\x89PNG" + bytes(200),
    "empty": lambda: b"",
    "cut": lambda: dicom()[:400],
    "values cut": lambda: dicom()[:-50],
    "deflated": lambda: dicom(np.zeros((8192, 8192), np.uint16), DEFLATED),  # 128 MB in 128 kB
    "too many pixels": lambda: dicom(Rows=65535, Columns=65535),
    "no rows": lambda: dicom(Rows=0),
    "frames": lambda: dicom(NumberOfFrames=100),
    "a window of nothing": lambda: dicom(WindowCenter=0, WindowWidth=0),
    "a window without end": lambda: dicom(WindowCenter=0, WindowWidth="1e999"),
    "another compression": lambda: dicom(syntax=JPEG_LS, packed=b"\xff\xd8\xff\xf7" + bytes(50)),
    "a JPEG of another size": lambda: dicom(np.zeros((8, 8), np.uint8), JPEG, packed(np.zeros((9000, 9000), np.uint8), "JPEG")),
    "no JPEG": lambda: dicom(np.zeros((8, 8), np.uint8), JPEG, b"\xff\xd8" + bytes(60)),
    "run lengths of more than it says": lambda: dicom(np.zeros((8, 8), np.uint8), RLE, bytes(64) + b"\x81\0" * 100_000),
    "no pixels": lambda: dicom(PixelData=None),
    "odd colours": lambda: dicom(np.zeros((4, 4, 3), np.uint8), SamplesPerPixel=4),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_hostile_or_damaged_is_a_reason_and_takes_no_memory(what, monkeypatch):
    import resource

    content = HOSTILE[what]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotRead) as refused:
        picture(content)
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000  # kB


def test_patients_are_units_classes_are_folders_and_headers_are_gone(tmp_path, capsys, caplog):
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
    image = store.images(np.array([0]), 10)[0].numpy()
    assert (image == picture(dicom(), (40, 400))).all()
    assert "does not de-identify" in told[0]
    everything = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert b"DOE" not in everything and b"P-1" not in everything
    assert not any(record.name.startswith("pydicom") for record in caplog.records) and not capsys.readouterr().err


def test_some_files_without_a_patient_are_refused_or_left_out_and_all_without_one_are_not(tmp_path):
    mixed = write(tmp_path / "mixed", a=dicom(PatientID="P-1"), b=dicom(PatientID=""), c=dicom(PatientID="P-2"))
    with pytest.raises(UserError, match=r"no PatientID, which other files have \(1\): b.dcm"):
        import_records(mixed, tmp_path / "s")
    report = import_records(mixed, tmp_path / "s", skip_broken=True)
    assert report.counts["train"] == 2 and report.skipped == [("b.dcm", "no PatientID, which other files have")]
    nobody = write(tmp_path / "nobody", a=dicom(), b=dicom(CT.T.copy()))
    assert import_records(nobody, tmp_path / "t").unit_name is None
