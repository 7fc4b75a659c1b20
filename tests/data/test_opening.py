from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfed.config import DataConfig
from dpfed.data.importers import import_records
from dpfed.data.opening import open_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


@pytest.fixture
def source(tmp_path: Path, pictures) -> Path:
    for number in range(8):
        pictures.file(tmp_path / "in" / "cat" / f"{number}.png")
    return tmp_path / "in"


def test_a_store_is_opened_by_either_name(tmp_path: Path, source: Path) -> None:
    import_records(source, tmp_path / "s")
    for name in ("store", "folder"):
        store = open_records(DataConfig(source=name, path=str(tmp_path / "s"), stores=str(tmp_path / "stores")))
        assert store.path == tmp_path / "s"
    assert not (tmp_path / "stores").exists()


def test_a_source_is_imported_once_and_again_when_it_changes(tmp_path: Path, source: Path, pictures) -> None:
    options = {"source": "folder", "path": str(source), "stores": str(tmp_path / "stores"), "size": 8, "validation": 2}
    options["resize"] = "crop"
    calls = []
    first = open_records(DataConfig(**options), progress=lambda *at: calls.append(at))
    assert calls and len(first.split("validation")) == 2 and first.size == 8 and first.path.name.startswith("folder-")
    calls.clear()
    assert open_records(DataConfig(**options), progress=lambda *at: calls.append(at)).path == first.path and not calls
    changes = [{"size": 10}, {"validation": 3}, {"public": True}]
    paths = {open_records(DataConfig(**options | change)).path for change in changes}
    pictures.file(source / "cat" / "9.png")
    latest = open_records(DataConfig(**options))
    assert len({first.path, latest.path} | paths) == 5 and len(latest) == 9


@pytest.mark.parametrize(
    ("size", "resize", "stored"),
    [(63, "crop", 63), (63, "model", 63), (64, "crop", None), (8, "squash", None), (8, "pad", None), (224, "model", None)],
)
def test_large_images_and_those_not_cropped_are_kept_as_files(tmp_path, source, size, resize, stored):
    config = DataConfig(source="folder", path=str(source), stores=str(tmp_path / "stores"), size=size, resize=resize)
    assert open_records(config).size == stored


@pytest.mark.parametrize("imported", [True, False])
def test_scenes_are_given_their_labelled_images(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, imported: bool):
    asked = []

    def scenes_store(config: DataConfig, open_labelled: Callable[[], RecordStore]) -> RecordStore:
        asked.append(config)
        return open_labelled()

    monkeypatch.setitem(sys.modules, "dpfed.data.generated.scenes", SimpleNamespace(scenes_store=scenes_store))
    if imported:
        import_records(source, tmp_path / "s")
    path = tmp_path / "s" if imported else source
    config = DataConfig(source="scenes", path=str(path), stores=str(tmp_path / "stores"), size=16, validation=3)
    labelled = open_records(config)
    assert asked == [config] and len(labelled.split("train")) == 8 and labelled.label_names == {"label": ["cat"]}
    assert labelled.path == path if imported else labelled.path.parent == tmp_path / "stores"
    with pytest.raises(UserError, match="data-path-missing"):
        open_records(DataConfig(source="scenes", stores=str(tmp_path / "stores")))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"source": "shape"}, "'shapes'.*data-source-unknown"),
        ({"source": "scene"}, "'scenes'.*data-source-unknown"),
        ({"source": "parqet", "path": "x"}, "'parquet'.*data-source-unknown"),
        ({"source": "store"}, "data-path-missing"),
        ({"source": "folder"}, "data-path-missing"),
        ({"source": "folder", "path": "/nowhere/at/all"}, "/nowhere/at/all.*data-path-nothing"),
        ({"source": "store", "path": "/nowhere/at/all"}, "/nowhere/at/all.*store-missing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, options: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        open_records(DataConfig(**options, stores=str(tmp_path / "stores")))
    assert not (tmp_path / "stores").exists()


def test_a_run_that_imports_records_says_what_it_does_not_use(tmp_path: Path, pictures) -> None:
    pictures.file(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("filepath,note,label\na.png,x,NA\n")
    said: list[str] = []
    open_records(DataConfig(source="table", path=str(tmp_path / "t.csv"), stores=str(tmp_path / "stores")), say=said.append)
    assert said == [
        "label: 'NA' (1) count as no class; if such a word names a class, rename the class.",
        "Columns that were not used: note.",
    ]
