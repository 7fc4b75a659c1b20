from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import detect, import_records
from dpfed.data.importers.parquet import ParquetImporter
from dpfed.data.store.record import record_key
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.patience import run_to_end

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CLASSES = ["airplane", "automobile", "bird"]


def metadata(**names: list[str]) -> dict[str, str]:
    """What `datasets` writes into the schema of a Parquet file."""
    features = {"image": {"_type": "Image"}, "score": {"dtype": "float32", "_type": "Value"}}
    features |= {column: {"names": classes, "_type": "ClassLabel"} for column, classes in names.items()}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def write(
    path: Path, pictures, count: int, image: str = "image", struct: bool = True, meta: dict | None = None, **columns: list
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [pictures.jpeg() for _ in range(count)]
    images = pa.array([{"bytes": file, "path": f"{row}.jpg"} for row, file in enumerate(files)], IMAGE) if struct else files
    pq.write_table(pa.table({image: images, **columns}).replace_schema_metadata(meta), path, row_group_size=3)
    return path


def imported(source: Path, dest: Path, **options: object) -> RecordStore:
    assert detect(source) == "parquet"
    import_records(source, dest, **options)
    return RecordStore.open(dest)


def beginnings(store: RecordStore) -> list[str]:
    """The ids up to the hash."""
    return [id.split("#")[0] for id in store.ids(np.arange(len(store)))]


def test_shards_with_named_classes(tmp_path: Path, pictures) -> None:
    data = tmp_path / "in" / "data"
    for shard in range(2):
        labels = [shard, 1, 2, None]
        write(data / f"train-0000{shard}-of-00002.parquet", pictures, 4, meta=metadata(label=CLASSES), label=labels)
    write(data / "test-00000-of-00001.parquet", pictures, 2, meta=metadata(label=CLASSES), label=[2, 0])
    store = imported(tmp_path / "in", tmp_path / "s", validation=3, size=8)
    assert store.label_names == {"label": CLASSES} and store.kind == "image"
    assert beginnings(store) == [f"train/{row % 4}.jpg" for row in range(8)] + ["test/0.jpg", "test/1.jpg"]
    assert store.labels["label"].tolist() == [0, 1, 2, -1, 1, 1, 2, -1, 2, 0]
    assert [len(store.split(split)) for split in ("train", "validation", "test")] == [5, 3, 2]


@pytest.mark.parametrize("name", ["validation", "valid", "val"])
def test_split_folders_and_names(tmp_path: Path, pictures, name: str) -> None:
    write(tmp_path / "in" / "default" / "train" / "0000.parquet", pictures, 2)
    write(tmp_path / "in" / "default" / name / "0000.parquet", pictures, 1)
    store = imported(tmp_path / "in", tmp_path / "s")
    assert beginnings(store) == ["train/0.jpg", "train/1.jpg", "validation/0.jpg"] and len(store.split("validation")) == 1


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("caption", ["a", "b"], [["a"], ["b"]]),
        ("text", ["a", "b"], [["a"], ["b"]]),
        ("captions", [["a", "b"], ["c"]], [["a", "b"], ["c"]]),
        ("sentences", [["a", None, "b"], ["c"]], [["a", "b"], ["c"]]),
        ("txt", ["a", "b"], [["a"], ["b"]]),
        ("description", ["a", "b"], [["a"], ["b"]]),
    ],
)
def test_captions(tmp_path: Path, pictures, column: str, values: list, expected: list[list[str]]) -> None:
    store = imported(write(tmp_path / "x.parquet", pictures, 2, **{column: values}), tmp_path / "s")
    assert store.kind == "image-text" and store.captions([0, 1]) == expected and store.name == "x"


def test_columns_that_were_not_used_are_reported(tmp_path: Path, pictures) -> None:
    columns = {"caption": [1], "text": [[["a", "cat"]]], "Note": ["x"], "sentences": [[{"tokens": ["a"]}]], "alt": ["a cat"]}
    write(tmp_path / "in" / "train.parquet", pictures, 1, label=[0], pid=[1], **columns)
    write(tmp_path / "in" / "test.parquet", pictures, 1, alt=["a dog"], pid=[2], score=[0.5])
    report = import_records(tmp_path / "in", tmp_path / "s")
    assert report.unused == ("caption", "text", "Note", "sentences", "score")
    assert RecordStore.open(tmp_path / "s").captions([0, 1]) == [["a cat"], ["a dog"]]


@pytest.mark.parametrize(
    ("column", "name"), [("unit", "unit"), ("person_id", "person"), ("patient_id", "patient"), ("pid", "person")]
)
@pytest.mark.parametrize("values", [[7, 8, 7, None], ["7", "8", "7", ""]])
def test_units(tmp_path: Path, pictures, column: str, name: str, values: list) -> None:
    store = imported(write(tmp_path / "x.parquet", pictures, 4, **{column: values}), tmp_path / "s")
    assert store.unit_name == name
    assert store.units.tolist() == [record_key(unit) for unit in ("7", "8", "7", *store.ids([3]))]


@pytest.mark.parametrize(
    ("values", "numbers", "names"),
    [([3, 0], [3, 0], ["0", "1", "2", "3"]), (["dog", "cat"], [1, 0], ["cat", "dog"]), ([None, "cat"], [-1, 0], ["cat"])],
)
def test_classes_without_metadata(tmp_path: Path, pictures, values: list, numbers: list[int], names: list[str]) -> None:
    store = imported(write(tmp_path / "x.parquet", pictures, 2, image="jpg", struct=False, label=values), tmp_path / "s")
    assert store.labels["label"].tolist() == numbers and store.label_names == {"label": names}


def test_images_by_path_and_images_that_are_missing(tmp_path: Path, pictures) -> None:
    pictures.file(tmp_path / "here.jpg")
    images = [{"bytes": None, "path": "here.jpg"}, {"bytes": None, "path": "gone.jpg"}, None, {"bytes": b"?", "path": None}]
    pq.write_table(pa.table({"image": pa.array(images, IMAGE)}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="3 of 4 .*train/1.*train/2.*record-unreadable"):
        import_records(tmp_path / "x.parquet", tmp_path / "s")
    store = imported(tmp_path / "x.parquet", tmp_path / "s", skip_broken=True)
    assert beginnings(store) == ["train/here.jpg"] and sorted(id for id, _ in store.skipped) == [
        "train/1",
        "train/2",
        "train/3",
    ]


def test_damaged_and_foreign_files_are_refused(tmp_path: Path, pictures) -> None:
    whole = write(tmp_path / "x.parquet", pictures, 40)
    (tmp_path / "half.parquet").write_bytes(whole.read_bytes()[:-200])
    content = bytearray(whole.read_bytes())
    content[100:1500] = bytes(1400)
    (tmp_path / "hole.parquet").write_bytes(content)
    pq.write_table(pa.table({"label": [1]}), tmp_path / "tabular.parquet")
    for name, code in (("half", "parquet-files"), ("hole", "parquet-broken"), ("tabular", "parquet-no-images")):
        with pytest.raises(UserError, match=code):
            import_records(tmp_path / f"{name}.parquet", tmp_path / "s")
        assert not (tmp_path / "s").exists()


def test_ambiguous_folders_are_refused(tmp_path: Path, pictures) -> None:
    for configuration in ("cats", "dogs"):
        write(tmp_path / "two" / configuration / "train-0.parquet", pictures, 1)
    for name in ("train-0", "extra"):
        write(tmp_path / "mixed" / f"{name}.parquet", pictures, 1)
    write(tmp_path / "differ" / "train-0.parquet", pictures, 1, text=["a"])
    write(tmp_path / "differ" / "test-0.parquet", pictures, 1)
    write(tmp_path / "unknown" / "train-0.parquet", pictures, 1, pid=[1])
    write(tmp_path / "unknown" / "test-0.parquet", pictures, 1)
    for name in ("train-0", "dogs/train-0"):
        write(tmp_path / "root" / f"{name}.parquet", pictures, 1)
    for source, named in (
        ("two", "cats.*import-sets"),
        ("root", "train-0.parquet, dogs.*import-sets"),
        ("mixed", "extra.*split-unnamed"),
        ("differ", "'text'.*parquet-column"),
        ("unknown", "'pid'.*parquet-unit-column"),
    ):
        with pytest.raises(UserError, match=named):
            import_records(tmp_path / source, tmp_path / "s")


@pytest.mark.parametrize("meta", [metadata(label=CLASSES), None])
def test_a_test_split_without_labels_keeps_the_training_labels(tmp_path: Path, pictures, meta: dict | None) -> None:
    write(tmp_path / "in" / "train-0.parquet", pictures, 2, meta=meta, label=[2, 1])
    write(tmp_path / "in" / "test-0.parquet", pictures, 1)
    assert imported(tmp_path / "in", tmp_path / "s").labels["label"].tolist() == [2, 1, -1]


ASK = """
import sys
from pathlib import Path
from dpfed.data.importers.parquet import ParquetImporter
from dpfed.errors import UserError

path = Path(sys.argv[1])
sound, opened = path.read_bytes(), 0
footer = int.from_bytes(sound[-8:-4], "little")
for place in range(len(sound) - 8 - footer, len(sound) - 8):
    for value in (1, 69):
        path.write_bytes(sound[:place] + bytes([value]) + sound[place + 1:])
        try:
            ParquetImporter().open(path)
            opened += 1
        except UserError:
            pass
print(opened)
"""


@pytest.mark.long
def test_a_damaged_footer_never_ends_the_process(tmp_path: Path) -> None:
    table = pa.table({"image": [{"bytes": b"x", "path": "a"}], "caption": ["a"], "label": [None]})
    pq.write_table(table, tmp_path / "train.parquet")
    asked = run_to_end(
        [sys.executable, "-c", ASK, str(tmp_path / "train.parquet")], capture_output=True, text=True, timeout=120
    )
    assert asked.returncode == 0, asked.stderr[-500:]
    assert int(asked.stdout) > 100


def typed(values: list, type: pa.DataType) -> pa.Array:
    return pa.array(values, type) if not pa.types.is_dictionary(type) else pa.array(values, type.value_type).dictionary_encode()


TEXTS = ["a cat", None]
LISTS = [["a cat", "a pet"], ["a dog", None]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"text": typed(TEXTS, pa.string())}, {"text": pa.nulls(0)}),
        ({"text": typed(TEXTS, pa.string())}, {}),  # an empty file may lack the column
        ({"text": typed(TEXTS, pa.dictionary(pa.int32(), pa.string()))}, {"text": typed(["b"], pa.string())}),
        ({"text": typed(TEXTS, pa.large_string())}, {"text": typed(["b"], pa.string_view())}),
        ({"text": typed(LISTS, pa.list_(pa.string(), 2))}, {"text": typed([["b"]], pa.large_list(pa.large_string()))}),
        ({"text": typed(LISTS, pa.list_view(pa.string_view()))}, {"text": typed(["b"], pa.string())}),
        ({"text": typed(["b"], pa.string())}, {"text": typed(["a"], pa.string()), "text_2": typed(["c"], pa.string())}),
        ({"text": typed(["b"], pa.string())}, {"Caption": typed(["a"], pa.string())}),
    ],
)
def test_whether_there_are_captions_follows_from_all_files(tmp_path: Path, pictures, order, one, other) -> None:
    expected = []
    for number, columns in zip(order, (one, other), strict=True):
        rows = max((len(column) for column in columns.values()), default=0)
        images = pa.array([pictures.png() for _ in range(rows)], pa.binary())
        (tmp_path / "in").mkdir(exist_ok=True)
        table = pa.table({"image": images, **columns} if rows or columns else {})
        pq.write_table(table, tmp_path / "in" / f"train-{number}.parquet")
        for row in range(rows):
            cells = [column[row].as_py() for column in columns.values()]
            expected.append([text for cell in cells if cell for text in ([cell] if isinstance(cell, str) else cell) if text])
    store = imported(tmp_path / "in", tmp_path / "s", skip_broken=True)
    assert store.kind == "image-text"
    assert sorted(store.captions(np.arange(len(store)))) == sorted(texts for texts in expected if texts)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"text": [1]}, "'text': texts in .*train-.*, int64 in .*train-.*parquet-type"),
        ({"pid": [1], "text": ["a"]}, "'pid'.*parquet-unit-column"),
        ({"note": ["a"]}, "'text'.*parquet-column"),
    ],
)
def test_files_that_disagree_are_refused_in_any_order(tmp_path: Path, pictures, order, columns: dict, said: str) -> None:
    write(tmp_path / "in" / f"train-{order[0]}.parquet", pictures, 1, text=["a"])
    write(tmp_path / "in" / f"train-{order[1]}.parquet", pictures, 1, **columns)
    with pytest.raises(UserError, match=said):
        import_records(tmp_path / "in", tmp_path / "s")


@pytest.mark.parametrize("type", [pa.binary_view(), pa.large_binary(), pa.struct([("bytes", pa.binary_view())])])
def test_images_of_every_binary_type_are_read(tmp_path: Path, pictures, type: pa.DataType) -> None:
    image = {"bytes": pictures.png()} if pa.types.is_struct(type) else pictures.png()
    pq.write_table(pa.table({"image": pa.array([image], type)}), tmp_path / "x.parquet")
    assert len(imported(tmp_path / "x.parquet", tmp_path / "s")) == 1


def test_a_data_set_may_have_more_files_than_a_process_may_open(tmp_path: Path, pictures) -> None:
    for number in range(30):
        write(tmp_path / "in" / f"train-{number:05}.parquet", pictures, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(tmp_path / "in" / "train-00000.parquet", "rb") as file:
        first_free = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 15, hard))
    try:
        assert ParquetImporter().open(tmp_path / "in").total == 30
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_damaged_column_of_splits_is_refused(tmp_path: Path, pictures) -> None:
    file = tmp_path / "in.parquet"
    table = pa.table({"image": [pictures.jpeg() for _ in range(4)], "split": ["train"] * 4})
    pq.write_table(table, file, compression="none", use_dictionary=False)
    start = pq.ParquetFile(file).metadata.row_group(0).column(1).data_page_offset
    content = file.read_bytes()
    file.write_bytes(content[:start] + b"\xff" * 30 + content[start + 30 :])
    with pytest.raises(UserError, match="parquet-files"):
        ParquetImporter().open(file)


def test_bytes_and_texts_do_not_make_one_person_two_units(tmp_path: Path, pictures) -> None:
    for name, persons in (("a", [b"p1", b"p2"]), ("b", ["p1", "p2"])):
        write(tmp_path / "in" / f"{name}.parquet", pictures, 2, person_id=persons)
    with pytest.raises(UserError, match="'person_id'.*parquet-type"):
        import_records(tmp_path / "in", tmp_path / "s")
