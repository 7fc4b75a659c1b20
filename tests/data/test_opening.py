from __future__ import annotations

from pathlib import Path

import pytest

from dpfed.config import DataConfig
from dpfed.data.importers import import_records
from dpfed.data.opening import open_records
from dpfed.errors import UserError


@pytest.fixture
def source(tmp_path: Path, pictures) -> Path:
    for number in range(8):
        pictures.file(tmp_path / "in" / "cat" / f"{number}.png")
    return tmp_path / "in"


def test_shapes_are_generated(tmp_path: Path) -> None:
    store = open_records(DataConfig(records=32, stores=str(tmp_path)))
    assert len(store.split("train")) == 32 and len(store.split("test")) == 1000 and store.path.parent == tmp_path


def test_a_store_is_opened_by_either_name(tmp_path: Path, source: Path) -> None:
    import_records(source, tmp_path / "s")
    for name in ("store", "folder"):
        store = open_records(DataConfig(source=name, path=str(tmp_path / "s"), stores=str(tmp_path / "stores")))
        assert store.path == tmp_path / "s"
    assert not (tmp_path / "stores").exists()


def test_a_source_is_imported_once_and_again_when_it_changes(tmp_path: Path, source: Path, pictures) -> None:
    options = {"source": "folder", "path": str(source), "stores": str(tmp_path / "stores"), "size": 8, "validation": 2}
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
    ("options", "named"),
    [
        ({"source": "shape"}, "shapes"),
        ({"source": "parqet", "path": "x"}, "parquet"),
        ({"source": "store"}, r"data\.path"),
        ({"source": "folder"}, r"data\.path"),
        ({"source": "folder", "path": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"source": "store", "path": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, options: dict[str, str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        open_records(DataConfig(**options, stores=str(tmp_path / "stores")))
    assert not (tmp_path / "stores").exists()
