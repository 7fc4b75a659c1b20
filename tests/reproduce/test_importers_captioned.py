"""CUHK-PEDES, RSTPReid, DeepFashion-MultiModal and ROCO, laid out as they are published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.importers import import_records
from dpfed.data.importers.source import Importer
from dpfed.data.store.record import record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.reproduce.importers.captioned_people import CuhkPedesImporter, DeepFashionImporter, RstpReidImporter
from dpfed.reproduce.importers.roco import RocoImporter

IMPORTERS = [CuhkPedesImporter(), RstpReidImporter(), DeepFashionImporter(), RocoImporter()]


def stored(importer: Importer, source: Path, dest: Path, skip_broken: bool = False) -> RecordStore:
    assert importer.recognises(source)
    opened = importer.open(source)
    assert opened.total == len(list(opened.records))
    import_records(source, dest, importer.name, skip_broken=skip_broken)
    store = RecordStore.open(dest)
    assert {split for split in ("train", "validation", "test") if len(store.split(split))} <= opened.splits
    return store


def described(store: RecordStore) -> dict[str, tuple[list[str], str]]:
    """id -> (captions, split)."""
    rows = np.arange(len(store))
    split = {row: name for name in ("train", "validation", "test") for row in store.split(name).tolist()}
    return {id: (store.captions([row])[0], split[row]) for row, id in enumerate(store.ids(rows))}


def units(store: RecordStore) -> dict[str, int]:
    """id -> key of its unit."""
    return dict(zip(store.ids(np.arange(len(store))), store.units.tolist(), strict=True))


def write_people(root: Path, pictures, file: str, entries: list[dict], image_key: str) -> Path:
    for entry in entries:
        pictures.file(root / "imgs" / entry[image_key])
    (root / file).write_text(json.dumps(entries))
    return root


PEDES = [
    {
        "split": "train",
        "captions": ["A man in a red coat. He carries a bag.", "The man wears red."],
        "file_path": "CUHK01/0363004.png",
        "processed_tokens": [["a", "man"], ["the", "man"]],
        "id": 1,
    },
    {"split": "train", "captions": ["He is seen from behind."], "file_path": "Market/0363_c1.jpg", "id": 1},
    {"split": "val", "captions": ["A woman with a blue bag."], "file_path": "test_query/p9.jpg", "id": 11004},
    {"split": "test", "captions": ["A child.", "A small person.", "A boy."], "file_path": "cam_a/000_45.bmp", "id": 12004},
]


@pytest.mark.parametrize("place", [".", "reid_raw.json"])
def test_cuhk_pedes_as_published(tmp_path: Path, pictures, place: str) -> None:
    root = write_people(tmp_path / "CUHK-PEDES", pictures, "reid_raw.json", PEDES, "file_path")
    store = stored(CuhkPedesImporter(), root / place, tmp_path / "s")
    assert store.kind == "image-text" and store.unit_name == "person"
    assert described(store) == {
        "CUHK01/0363004.png": (["A man in a red coat. He carries a bag.", "The man wears red."], "train"),
        "Market/0363_c1.jpg": (["He is seen from behind."], "train"),
        "test_query/p9.jpg": (["A woman with a blue bag."], "validation"),
        "cam_a/000_45.bmp": (["A child.", "A small person.", "A boy."], "test"),
    }
    assert units(store) == {entry["file_path"]: record_key(str(entry["id"])) for entry in PEDES}


RSTP = [
    {"id": 0, "img_path": "0000_c14_0031.jpg", "captions": ["The man wears a grey jacket.", "A man."], "split": "train"},
    {"id": 0, "img_path": "0000_c1_0004.jpg", "captions": ["His shirt is blue.", "He walks."], "split": "train"},
    {"id": 3701, "img_path": "3701_c5_0022.jpg", "captions": ["A woman.", "She has long hair."], "split": "val"},
    {"id": 3901, "img_path": "3901_c7_0015.jpg", "captions": ["A girl.", "She sits."], "split": "test"},
]


@pytest.mark.parametrize("place", [".", "data_captions.json"])
def test_rstpreid_as_published(tmp_path: Path, pictures, place: str) -> None:
    root = write_people(tmp_path / "RSTPReid", pictures, "data_captions.json", RSTP, "img_path")
    store = stored(RstpReidImporter(), root / place, tmp_path / "s")
    splits = {"train": "train", "val": "validation", "test": "test"}
    assert described(store) == {entry["img_path"]: (entry["captions"], splits[entry["split"]]) for entry in RSTP}
    assert store.unit_name == "person" and len(set(store.units.tolist())) == 3
    assert units(store)["0000_c14_0031.jpg"] == units(store)["0000_c1_0004.jpg"]


def test_missing_images_and_captions_are_left_out_only_if_asked(tmp_path: Path, pictures) -> None:
    entries = [*RSTP, {**RSTP[0], "img_path": "0000_c2_0001.jpg", "captions": [" "]}]
    root = write_people(tmp_path / "in", pictures, "data_captions.json", entries, "img_path")
    (root / "imgs" / "0000_c1_0004.jpg").unlink()
    with pytest.raises(UserError, match=r"2 of 5 .*file missing \(1\): 0000_c1_0004\.jpg.*no caption \(1\): 0000_c2_0001\.jpg"):
        stored(RstpReidImporter(), root, tmp_path / "s")
    store = stored(RstpReidImporter(), root, tmp_path / "s", skip_broken=True)
    assert sorted(described(store)) == ["0000_c14_0031.jpg", "3701_c5_0022.jpg", "3901_c7_0015.jpg"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"id": None}, "'id'"),
        ({"id": True}, "'id'"),
        ({"id": ""}, "'id'"),
        ({"file_path": None}, "'file_path'"),
        ({"captions": "one text"}, "'captions'"),
        ({"captions": [1]}, "'captions'"),
        ({"split": None}, "'split'"),
        ({"split": "trian"}, "did you mean 'train'"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_named_by_its_number(tmp_path: Path, pictures, changes: dict, named: str) -> None:
    root = write_people(tmp_path / "in", pictures, "reid_raw.json", PEDES, "file_path")
    (root / "reid_raw.json").write_text(json.dumps([PEDES[0], {**PEDES[1], **changes}]))
    with pytest.raises(UserError, match="paper-(entry-key|split)") as caught:
        CuhkPedesImporter().open(root)
    assert "reid_raw.json: entry 2" in str(caught.value) and named in str(caught.value)


FASHION = {
    "MEN-Denim-id_00000080-01_7_additional.jpg": "The lower clothing is of long length. The fabric is denim.",
    "MEN-Denim-id_00000080-02_1_front.jpg": "His trousers are of pure color.",
    "WOMEN-Tees_Tanks-id_00007979-04_4_full.jpg": "This lady wears a tank top.",
}


def write_fashion(root: Path, pictures) -> Path:
    for name in FASHION:
        pictures.file(root / "images" / name)
    (root / "captions.json").write_text(json.dumps(FASHION))
    return root


@pytest.mark.parametrize("place", [".", "captions.json"])
def test_deepfashion_multimodal_as_published(tmp_path: Path, pictures, place: str) -> None:
    root = write_fashion(tmp_path / "in", pictures)
    pictures.file(root / "images" / "MEN-Denim-id_00000081-01_7_additional.jpg")  # not all images have a caption
    store = stored(DeepFashionImporter(), root / place, tmp_path / "s")
    assert described(store) == {name: ([caption], "train") for name, caption in FASHION.items()}
    assert store.unit_name == "item"
    items = ("id_00000080", "id_00000080", "id_00007979")
    assert units(store) == {name: record_key(item) for name, item in zip(FASHION, items, strict=True)}


ROCO = {
    "train/radiology": "ROCO_00002\t Axial MRI: a 3\u2028mm lesion.\nROCO_00003\t  X-ray\twith a tab\n",
    "validation/radiology": "ROCO_00010\t Échographie, “arrow”.\n",
    "test/radiology": "ROCO_00001\t Coronal view.",
    "train/non-radiology": "ROCO_00004\t A flow chart.\n",
}


def write_roco(root: Path, pictures) -> Path:
    for folder, captions in ROCO.items():
        for line in captions.strip("\n").split("\n"):
            pictures.file(root / folder / "images" / f"{line.split()[0]}.jpg")
        (root / folder / "captions.txt").write_text(captions, encoding="utf-8")
        (root / folder / "semtypes.txt").write_text("ROCO_00002\tT060\tDiagnostic Procedure\n")
    return root


@pytest.mark.parametrize("given", [".", "data"])
def test_roco_version_1_as_fetched(tmp_path: Path, pictures, given: str) -> None:
    write_roco(tmp_path / "in" / "data", pictures)
    store = stored(RocoImporter(), tmp_path / "in" / given, tmp_path / "s")
    assert described(store) == {
        "train/radiology/images/ROCO_00002.jpg": (["Axial MRI: a 3\u2028mm lesion."], "train"),
        "train/radiology/images/ROCO_00003.jpg": (["X-ray\twith a tab"], "train"),
        "validation/radiology/images/ROCO_00010.jpg": (["Échographie, “arrow”."], "validation"),
        "test/radiology/images/ROCO_00001.jpg": (["Coronal view."], "test"),
    }
    assert store.units is None


@pytest.mark.parametrize("importer", IMPORTERS, ids=lambda importer: importer.name)
def test_each_recognises_its_own_layout_only(tmp_path: Path, pictures, importer: Importer) -> None:
    write_people(tmp_path / "cuhk-pedes", pictures, "reid_raw.json", PEDES, "file_path")
    write_people(tmp_path / "rstpreid", pictures, "data_captions.json", RSTP, "img_path")
    write_fashion(tmp_path / "deepfashion-mm", pictures)
    write_roco(tmp_path / "roco", pictures)
    pictures.file(tmp_path / "folder" / "images" / "1.jpg")
    (tmp_path / "folder" / "captions.json").write_text('{"1.jpg": "a cat"}')
    assert [path.name for path in sorted(tmp_path.iterdir()) if importer.recognises(path)] == [importer.name]
    assert not importer.recognises(tmp_path / "nowhere")


@pytest.mark.parametrize("importer", IMPORTERS, ids=lambda importer: importer.name)
def test_a_folder_without_the_data_is_refused_with_the_layout(tmp_path: Path, importer: Importer) -> None:
    with pytest.raises(UserError, match="paper-(unreadable|not-roco)") as caught:
        importer.open(tmp_path)
    assert importer.layout in str(caught.value)
