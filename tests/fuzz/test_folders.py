"""Folders of images and of known data sets, with anything in a file's place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st

from dpfed.data.importers import import_records
from dpfed.errors import UserError
from tests.fuzz.damage import REPLACEMENTS, damaged, replace
from tests.fuzz.data_root import CELLS, NAMES, PNG, bounded, imported, listing
from tests.fuzz.profiles import Effort, answer, efforts


@pytest.mark.long
@efforts
def test_folders(effort: Effort, world: Path) -> None:
    root = world / "folder"

    def check(entries: list[tuple[str, str, str]], skip: bool, size: int | None) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for above, name, what in entries:
            place = root / above / name
            if os.path.lexists(place) or not os.path.isdir(place.parent) and os.path.lexists(place.parent):
                continue
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(PNG)
            except (OSError, ValueError):  # a name that no file can have
                continue
            if what != "image":
                replace(place, what, world / "secret.png")
        imported(world, root, "folder" if size else None, skip_broken=skip, size=size)

    above = st.sampled_from(["", "cat", "dog", "train/cat", "val/cat", "test", ".hidden", "a b", "é", "train/train"])
    names = st.one_of(
        st.sampled_from(["1.png", "2.JPG", "3.svg", "4.dcm", "metadata.csv", "train.tsv", "x.tar", "y.parquet", "store.json"]),
        st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=6).map(
            lambda s: s + ".png"
        ),
        st.binary(min_size=1, max_size=4).map(lambda b: os.fsdecode(b.replace(b"/", b"").replace(b"\0", b"")) + ".png"),
    )
    entries = st.lists(st.tuples(above, names, st.sampled_from(["image"] * 6 + list(REPLACEMENTS))), max_size=6)
    bounded(effort, 100, check, entries, st.booleans(), st.sampled_from([None, 2]))


REID = [{"id": 1, "img_path": "a.png", "file_path": "a.png", "captions": ["x"], "split": "train"}]
LISTS = {  # importer -> its listing, where the images are, and a whole one
    "cuhk-pedes": ("reid_raw.json", "imgs", json.dumps(REID)),
    "rstpreid": ("data_captions.json", "imgs", json.dumps(REID)),
    "deepfashion-mm": ("captions.json", "images", json.dumps({"X-id_00000080-Y.png": "a"})),
    "roco": ("captions.txt", "images", "a\tan image\nb\tanother\n"),
    "camelyon17": (
        "metadata.csv",
        "patches",
        ",patient,node,x_coord,y_coord,tumor,slide,center,split\n0,004,4,3328,21792,1,0,0,0\n1,4,4,3,7,0,0,3,1\n",
    ),
}


@efforts
@pytest.mark.parametrize("format", LISTS)
def test_lists_of_known_data_sets(effort: Effort, world: Path, format: str) -> None:
    name, below, whole = LISTS[format]
    root = world / "known"
    (root / below / "patient_004_node_4").mkdir(parents=True)
    for image in ("a.png", "a.jpg", "X-id_00000080-Y.png", "patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png"):
        (root / below / image).write_bytes(PNG)

    def check(content: bytes, skip: bool) -> None:
        (root / name).write_bytes(content)
        imported(world, root, format, skip_broken=skip)

    marks = ("a.png", "a\t", "id_0", "train", "3328", "1", "0,0", '"x"', '"a"', "[", ",")

    def swapped(drawn: tuple[str, str]) -> bytes:
        mark, other = drawn
        return whole.replace(mark, other.replace("OUTSIDE", str(world))).encode("utf-8", "surrogatepass")

    others = st.one_of(NAMES, CELLS, st.sampled_from(["10000000000", "null", "[1]", "{}", "-5", "1.5", "[" * 5000]))
    contents = st.one_of(
        damaged(whole.encode()), st.tuples(st.sampled_from(marks), others).map(swapped), st.binary(max_size=30)
    )
    bounded(effort, 40, check, contents, st.booleans())


@pytest.mark.parametrize("how", [how for how in REPLACEMENTS if how not in ("link outside", "empty")])
@pytest.mark.parametrize("name", "x.csv x.tar x.parquet reid_raw.json captions.txt metadata.csv x.png folder".split())
def test_something_else_in_a_files_place(world: Path, name: str, how: str) -> None:
    (world / "root" / name).touch()
    replace(world / "root" / name, how, world / "secret.png")
    formats = ["table", "webdataset", "parquet", "cuhk-pedes", "roco", "camelyon17", "folder", "deepfashion-mm", None]

    def check(_: None) -> None:
        for format in formats:
            imported(world, world / "root" / name, format)
            imported(world, world / "root", format)

    Effort(1).tries(1, check, st.none())


def test_what_is_there_is_never_overwritten(world: Path) -> None:
    for how in ("file", "folder", *REPLACEMENTS[2:]):
        dest = world / how
        dest.mkdir() if how == "folder" else dest.write_text("precious")
        if how not in ("file", "folder"):
            replace(dest, how, world / "secret.png")
        before = listing(world)
        assert isinstance(answer(lambda dest=dest: import_records(world / "root", dest)), UserError)
        assert listing(world) == before
