"""Record stores that were damaged on disk: read as they are, or refused with a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from PIL import Image

from dpfed.data.store.division import divide_store
from dpfed.data.store.record import SPLITS, RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from tests.data.views.files_of_all_modes import colours, encoded
from tests.fuzz.damage import REPLACEMENTS, damaged, replace
from tests.fuzz.profiles import Effort, answer, efforts

KINDS = ("raw", "files")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for kind, size in (("raw", 4), ("files", None)):
        names = {"label": ["a", "b"]}
        with StoreWriter(
            folder / kind, name="x", kind="image-text", size=size, label_names=names, unit_name="person"
        ) as writer:
            for row in range(12):
                image = Image.fromarray(colours(6, 5))
                content = image.convert("RGB") if row % 2 else encoded(image.convert("L"), "JPEG")
                split = SPLITS[max(0, row - 9)]
                writer.add(RecordInput(str(row), content, (f"text {row}",), {"label": row % 2}, split, f"p{row // 3}"))
    return folder


def use(path: Path, dest: Path) -> None:
    """All that is done with a store: all of it may be refused, and nothing else may happen."""
    store = answer(lambda: RecordStore.open(path))
    if isinstance(store, UserError):
        return
    rows = np.arange(len(store))
    for call in (
        lambda: store.images(rows, 4),
        lambda: (store.ids(rows), store.captions(rows), store.fingerprint, repr(store)),
        lambda: (store.training_records, store.training_units, store.encoded(rows)),
        lambda: divide_store(path, dest / "sites", 2, 0.5),
    ):
        answer(call)


def everything(folder: Path) -> list[tuple[str, int, bytes]]:
    """What is in a folder: names, kinds of file, and what regular files hold."""
    paths = sorted(folder.rglob("*"))

    def content(path: Path) -> bytes:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""

    return [(str(path), path.lstat().st_mode, content(path)) for path in paths]


@efforts
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_with_damaged_bytes(effort: Effort, stores: Path, tmp_path: Path, kind: str) -> None:
    files = sorted(path.relative_to(stores) for path in (stores / kind).rglob("*") if path.is_file())
    strategy = st.sampled_from(files).flatmap(lambda name: st.tuples(st.just(name), damaged((stores / name).read_bytes())))

    def check(drawn: tuple[Path, bytes], keep_sizes: bool) -> None:
        name, content = drawn
        shutil.rmtree(tmp_path / "case", ignore_errors=True)
        shutil.copytree(stores / kind, tmp_path / "case" / kind)
        (tmp_path / "case" / name).write_bytes(content)
        header = tmp_path / "case" / kind / "store.json"
        if keep_sizes and name.name != "store.json":  # damage that the sizes in the header do not give away
            whole = json.loads(header.read_text())
            whole["files"][name.relative_to(kind).as_posix()] = len(content)
            header.write_text(json.dumps(whole))
        before = everything(tmp_path / "case")
        use(tmp_path / "case" / kind, tmp_path / "case" / "new")
        shutil.rmtree(tmp_path / "case" / "new", ignore_errors=True)
        assert everything(tmp_path / "case") == before

    effort.tries(60, check, strategy, st.booleans())


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.sampled_from(SPLITS)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@efforts
@pytest.mark.parametrize("kind", KINDS)
def test_a_header_that_says_something_else(effort: Effort, stores: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(stores / kind, tmp_path / "store")
    header = json.loads((tmp_path / "store" / "store.json").read_text())
    places = [(key,) for key in header]
    places += [(key, below) for key, value in header.items() if isinstance(value, dict) for below in value]

    def check(place: tuple[str, ...], value: object) -> None:
        changed = json.loads(json.dumps(header))
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        (tmp_path / "store" / "store.json").write_text(json.dumps(changed))
        use(tmp_path / "store", tmp_path / "new")
        shutil.rmtree(tmp_path / "new", ignore_errors=True)

    effort.tries(60, check, st.sampled_from(places), JSON)


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_with_something_else_in_a_files_place(stores: Path, tmp_path: Path, kind: str, how: str) -> None:
    (tmp_path / "secret").write_bytes((stores / "files" / "records.arrow").read_bytes())
    for number, file in enumerate(sorted((stores / kind).rglob("*"))):
        case = tmp_path / str(number)
        shutil.copytree(stores / kind, case / kind)
        replace(case / file.relative_to(stores), how, tmp_path / "secret")
        Effort(1).tries(1, lambda _, case=case: use(case / kind, case / "new"), st.none())
        result = answer(lambda case=case: RecordStore.open(case / kind))
        assert isinstance(result, UserError) or how == "link outside"  # a person may keep the file on another disk


@efforts
def test_arrow_files_of_other_shapes(effort: Effort, stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "raw", tmp_path / "store")
    header = json.loads((tmp_path / "store" / "store.json").read_text())
    types = [pa.int8(), pa.uint64(), pa.float32(), pa.string(), pa.binary(), pa.binary(48), pa.list_(pa.string()), pa.null()]
    names = ["id", "image", "captions", "key", "split", "unit", "label:label", "x"]
    columns = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(types)), max_size=6)

    def check(name: str, columns: list[tuple[str, pa.DataType]], rows: int, records: int) -> None:
        arrays = [pa.nulls(rows, type) if rows % 2 else pa.array([_value(type)] * rows, type) for _, type in columns]
        table = pa.table(arrays, names=[name for name, _ in columns])
        shutil.copytree(stores / "raw", tmp_path / "store", dirs_exist_ok=True)
        with pa.ipc.new_file(str(tmp_path / "store" / name), table.schema) as writer:
            writer.write_table(table)
        size = (tmp_path / "store" / name).stat().st_size
        changed = header | {"records": records, "files": header["files"] | {name: size}}
        (tmp_path / "store" / "store.json").write_text(json.dumps(changed))
        use(tmp_path / "store", tmp_path / "new")
        shutil.rmtree(tmp_path / "new", ignore_errors=True)

    files = st.sampled_from(["index.arrow", "records.arrow"])
    effort.tries(60, check, files, columns, st.sampled_from([0, 1, 11, 12, 13]), st.sampled_from([0, 1, 11, 12, 13]))


def _value(type: pa.DataType) -> object:
    if pa.types.is_binary(type) or pa.types.is_fixed_size_binary(type):
        return bytes(48)
    return None if pa.types.is_null(type) else ["x"] if pa.types.is_list(type) else "x" if pa.types.is_string(type) else 1
