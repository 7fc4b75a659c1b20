"""Tables as people have them: what Excel, Hugging Face, COCO and Flickr write, and what goes wrong in them."""

from __future__ import annotations

import json
import subprocess
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest

from dpfed.data.importers import import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_lost_files import commands, run


def found(source: Path | list[Path], dest: Path, **options: object) -> dict[str, tuple[str, list[str]]]:
    """Name of each record -> its split and its captions."""
    store = RecordStore.open(import_records(source, dest, **options).path)
    split = {row: name for name in ("train", "validation", "test") for row in store.split(name).tolist()}
    rows = np.arange(len(store))
    return {id: (split[row], texts) for row, (id, texts) in enumerate(zip(store.ids(rows), store.captions(rows), strict=True))}


def lay(root: Path, pictures, **files: str) -> Path:
    """Writes texts and, where a text is empty, images."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8") if text else pictures.file(path)
    return root


LINES = '{"file_name": "a.png", "text": "a cat", "width": 3}\n\n{"file_name": "b.png", "text": ["b", "c"]}\n'
COCO = {
    "images": [{"id": 7, "file_name": "7.png"}, {"id": 8, "file_name": "8.png"}],
    "annotations": [{"image_id": 7, "caption": "a cat"}, {"image_id": 7, "caption": "a pet"}],
}
KARPATHY = {
    "images": [
        {"filename": "7.png", "split": "restval", "sentences": [{"raw": "a cat", "tokens": ["a"]}, {"raw": "a pet"}]},
        {"filename": "8.png", "split": "test", "sentences": [{"raw": "a dog"}]},
    ]
}
TOKENS = "1_a.png#0\ta cat\n1_a.png#1\ta pet \n2.png#0\tb\n3.png#0\tc # d\n"
CAT = ["a cat", "a pet"]
FORMS = {
    "metadata.jsonl of each split": (
        {
            "train/metadata.jsonl": LINES,
            "train/a.png": "",
            "train/b.png": "",
            "test/metadata.csv": "file_name,text\na.png,d\n",
            "test/a.png": "",
        },
        {"train/a.png": ("train", ["a cat"]), "train/b.png": ("train", ["b", "c"]), "test/a.png": ("test", ["d"])},
    ),
    "one metadata.csv for split folders": (
        {"metadata.csv": "file_name,text\ntrain/a.png,c\ntest/a.png,d\n", "train/a.png": "", "test/a.png": ""},
        {"train/a.png": ("train", ["c"]), "test/a.png": ("test", ["d"])},
    ),
    "COCO": (
        {
            "annotations/captions_train2017.json": json.dumps(COCO),
            "annotations/captions_val2017.json": json.dumps(
                {"images": [{"id": 1, "file_name": "1.png"}], "annotations": [{"image_id": 1, "caption": "b"}]}
            ),
            "annotations/instances_val2017.json": "{}",
            **dict.fromkeys(("train2017/7.png", "train2017/8.png", "val2017/1.png"), ""),
        },
        {"train2017/7.png": ("train", CAT), "val2017/1.png": ("validation", ["b"])},
    ),
    "Karpathy": (
        {"dataset_coco.json": json.dumps(KARPATHY), "images/7.png": "", "images/8.png": ""},
        {"images/7.png": ("train", CAT), "images/8.png": ("test", ["a dog"])},
    ),
    "Flickr8k": (
        {
            "text/Flickr8k.token.txt": TOKENS,
            "text/Flickr8k.lemma.token.txt": TOKENS,
            "text/ExpertAnnotations.txt": "x",
            "text/Flickr_8k.trainImages.txt": "1_a.png\n",
            "text/Flickr_8k.devImages.txt": "2.png\n",
            "text/Flickr_8k.testImages.txt": "3.png\n",
            **dict.fromkeys(("Flicker8k_Dataset/1_a.png", "Flicker8k_Dataset/2.png", "Flicker8k_Dataset/3.png"), ""),
        },
        {
            f"Flicker8k_Dataset/{name}.png": value
            for name, value in {"1_a": ("train", CAT), "2": ("validation", ["b"]), "3": ("test", ["c # d"])}.items()
        },
    ),
    "Flickr30k": (
        {
            "results_20130124.token": TOKENS,
            **dict.fromkeys(("flickr30k-images/1_a.png", "flickr30k-images/2.png", "flickr30k-images/3.png"), ""),
        },
        {f"flickr30k-images/{name}.png": ("train", texts) for name, texts in {"1_a": CAT, "2": ["b"], "3": ["c # d"]}.items()},
    ),
}


@pytest.mark.parametrize(("files", "expected"), FORMS.values(), ids=list(FORMS))
def test_folders_as_they_are_downloaded_are_read(tmp_path: Path, pictures, files: dict, expected: dict) -> None:
    assert found(lay(tmp_path / "in", pictures, **files), tmp_path / "s") == expected


@pytest.mark.parametrize(
    ("name", "text", "captions"),
    [
        (
            "results.csv",
            "image_name| comment_number| comment\na.png| 0| a cat, black\na.png| 1| a pet\n",
            ["a cat, black", "a pet"],
        ),
        ("captions.txt", 'image,caption\na.png,"a cat, black"\n', ["a cat, black"]),
        ("t.csv", "sep=;\r\nfilepath;title\r\na.png;a cat, black\r\n", ["a cat, black"]),
        ("t.csv", '"sep=|"\nfilepath|title\na.png|a; cat\n', ["a; cat"]),
        ("t.jsonl", '{"image": "a.png", "caption": ["a", "b"]}', ["a", "b"]),
        ("t.csv", 'filepath,title\na.png,"two\nlines, and more"', ["two\nlines, and more"]),
    ],
)
def test_tables_in_other_forms(tmp_path: Path, pictures, name: str, text: str, captions: list[str]) -> None:
    lay(tmp_path, pictures, **{"in/images/a.png": "", f"in/{name}": text})
    assert found(tmp_path / "in" / name, tmp_path / "s") == {"images/a.png": ("train", captions)}
    if name.endswith(".txt"):
        with pytest.raises(UserError, match=f"{name} DEST --format table"):
            import_records(tmp_path / "in", tmp_path / "t")
    else:
        assert found(tmp_path / "in", tmp_path / "t") == {"images/a.png": ("train", captions)}


def test_several_sources_of_another_format_are_refused_for_the_format(tmp_path: Path) -> None:
    tables = [tmp_path / "train.csv", tmp_path / "test.csv"]
    for table in tables:
        table.write_text("filepath,title\n")
    with pytest.raises(UserError, match="the format 'folder' takes one source.*import-format-several"):
        import_records(tables, tmp_path / "store", format="folder")
    with pytest.raises(UserError, match="several sources must be .csv.*import-several-sources"):
        import_records([*tables, tmp_path], tmp_path / "store")


def test_tables_of_several_folders_are_one_data_set(tmp_path: Path, pictures) -> None:
    files = {f"{folder}/captions.csv": f"filepath,title\n1.png,{folder}\n" for folder in ("a", "b")}
    source = lay(tmp_path / "in", pictures, **files, **{"a/1.png": "", "b/1.png": ""})
    with pytest.raises(UserError, match=f"{source}/a/captions.csv {source}/b/captions.csv DEST --format table"):
        import_records(source, tmp_path / "s")
    expected = {f"{folder}/1.png": ("train", [folder]) for folder in ("a", "b")}
    assert found([source / "a/captions.csv", source / "b/captions.csv"], tmp_path / "s") == expected


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("filepath,title,title\na.png,x,y\n", "2 and 3 of .*t.csv:1 .*'title'.*table-twice"),
        ("filepath,label,x,label\na.png,1,2,3\n", "2 and 4 of .*'label'.*table-twice"),
        (f"filepath,title\na.png,x\nb.png,{'x' * 140_000}\n", "t.csv:3 .* 131,072 .*table-cell-long"),
        ('filepath,title\na.png,x\nb.png,"a cat\nc.png,y\n', "t.csv:3 .*table-unclosed"),
        ('filepath,title\na.png,"a cat\nb.png,a "dog"\nc.png,z\n', "t.csv:2 .*table-cell-swallows"),
        ("sep=;\nfilepath;title\na.png;x;y\n", "t.csv:3 .*table-many-cells"),
        ("filepath,title\nimages\\a.png,x\n", r"write / instead of \\ in paths \(1\): images\\a.png"),
        ("filepath,title\nC:\\x\\a.png,x\n", "its path is a Windows path"),
        ("filepath,title\nhttps://x.org/a.png,x\n", "addresses of the web are not fetched"),
        ("filepath,title\nimages/A.PNG,x\n", r"other capitals \(1\): images/A.PNG"),
        (f"filepath,title\nimages/{unicodedata.normalize('NFD', 'é')}.png,x\n", r"another Unicode form \(NFC, NFD\)"),
        ("filepath,title\ntrain/a.png,x\ntest/b.png,y\nimages/a.png,z\n", "images/a.png .*table-split-unsaid"),
    ],
)
def test_what_is_wrong_with_a_table_has_its_line_and_cause(tmp_path: Path, pictures, rows: str, said: str) -> None:
    lay(tmp_path, pictures, **{"t.csv": rows, "images/a.png": "", f"images/{unicodedata.normalize('NFC', 'é')}.png": ""})
    with pytest.raises(UserError, match=said):
        import_records(tmp_path / "t.csv", tmp_path / "s")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", '{"image": "a.png"}\n{"image": ', "t.jsonl:2 .*table-json-line"),
        ("t.jsonl", '["a.png"]', "t.jsonl:1 .* list.*table-json-object"),
        ("captions_x.json", '{"images": [{"id": 1}]}', "KeyError.*table-coco-layout"),
        ("captions_x.json", "[1]", "entry 1 of the JSON array.*table-json-array"),
        ("captions_x.json", "3", "holds int.*table-json-content"),
        ("annotations/captions_x.json", json.dumps(COCO), "table-in-annotations"),
        ("x.token", "a.png#0\tx\nb.png y\n", "x.token:2 .*table-flickr-line"),
    ],
)
def test_other_forms_are_refused_in_words(tmp_path: Path, pictures, name: str, text: str, said: str) -> None:
    lay(tmp_path, pictures, **{name: text, "a.png": ""})
    with pytest.raises(UserError, match=said):
        import_records(tmp_path / name, tmp_path / "s", format="table")


@pytest.mark.parametrize(("encoding", "named"), [("cp1252", "WINDOWS-1252"), ("utf-16", "UTF-16")])
def test_the_command_for_a_table_of_another_encoding_works(tmp_path: Path, pictures, encoding: str, named: str) -> None:
    folder = tmp_path / "a folder"
    table = lay(folder, pictures, **{"a.png": ""}) / "table.csv"
    table.write_text("filepath;title\na.png;eine schöne Blüte\n", encoding=encoding)
    with pytest.raises(UserError, match=named) as raised:
        import_records(table, tmp_path / "s")
    command = str(raised.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert found(folder / "table-utf8.csv", tmp_path / "s") == {"a.png": ("train", ["eine schöne Blüte"])}


@pytest.mark.parametrize(
    ("folders", "said"), [(["test", "test"], "in test"), (["val", "val"], "in val"), (["val", "a/test"], "in test, val")]
)
@pytest.mark.parametrize("how", ["table", "folder", "tables"])
def test_a_table_of_held_out_images_is_not_trained_on_unless_the_command_says_so(
    tmp_path: Path, pictures, folders: list[str], said: str, how: str
) -> None:
    files = [f"{folder}/{number}.png" for number, folder in enumerate(folders)]
    source = lay(tmp_path / "my set", pictures, **dict.fromkeys(files, ""))
    tables = [source / "1.csv", source / "2.csv"] if how == "tables" else [source / "t.csv"]
    for table, part in zip(tables, [files] if how != "tables" else [[file] for file in files], strict=True):
        table.write_text("\n".join(["filepath,title", *(f"{file},x" for file in part)]))
    given = {"folder": source, "table": tables[0], "tables": tables}[how]
    with pytest.raises(UserError, match=rf"{said}\. .*table-no-training") as raised:
        import_records(given, tmp_path / "s")
    assert len(run(commands(str(raised.value))[0], tmp_path / "s").split("train")) == 2
    with pytest.raises(UserError, match=r"takes only 0 .*table-splits-level"):
        import_records(given, tmp_path / "t", splits=1)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("filepath,split\na.png,train\ntest/b.png,\n", {"a.png": "train", "test/b.png": "test"}),
        ("filepath\nc.png\nb.png\n", {"train/c.png": "train", "test/b.png": "test"}),
    ],
)
def test_a_row_has_the_split_of_the_folder_of_its_image(tmp_path: Path, pictures, rows: str, expected: dict) -> None:
    """Also where a column says the splits of other rows alone, and where the table gives only the names of the files."""
    lay(tmp_path, pictures, **{"t.csv": rows, "a.png": "", "test/b.png": "", "train/c.png": ""})
    assert {id: split for id, (split, _) in found(tmp_path / "t.csv", tmp_path / "s").items()} == expected


def test_a_missing_image_has_no_say_in_the_splits(tmp_path: Path, pictures) -> None:
    lay(tmp_path, pictures, **{"t.csv": "filepath\na.png\nb.png\ngone.png\n", "train/a.png": "", "test/b.png": ""})
    assert {split for split, _ in found(tmp_path / "t.csv", tmp_path / "s", skip_broken=True).values()} == {"train", "test"}
    (tmp_path / "t.csv").write_text("filepath\nb.png\ngone.png\n")
    with pytest.raises(UserError, match="table-no-training"):
        import_records(tmp_path / "t.csv", tmp_path / "t", skip_broken=True)


def test_two_images_of_one_id_are_refused(tmp_path: Path, pictures) -> None:
    images = [{"id": 0, "file_name": "a.png"}, {"id": 0, "file_name": "a.png"}]  # of two files that were joined
    coco = {"images": images, "annotations": [{"image_id": 0, "caption": "a cat"}, {"image_id": 0, "caption": "a pet"}]}
    joined = lay(tmp_path / "joined", pictures, **{"captions_x.json": json.dumps(coco), "a.png": ""})
    import_records(joined / "captions_x.json", tmp_path / "j")
    assert RecordStore.open(tmp_path / "j").captions(np.array([0])) == [["a cat", "a pet"]]
    images[1] = {"id": 0, "file_name": "b.png"}
    coco = json.dumps(coco)
    source = lay(tmp_path / "in", pictures, **{"captions_x.json": coco, "a.png": "", "b.png": ""})
    with pytest.raises(UserError, match="two different images have the id 0.*table-coco-id"):
        import_records(source, tmp_path / "s")


def test_a_folder_that_is_named_like_a_table_is_none(tmp_path: Path, pictures) -> None:
    source = lay(tmp_path / "in", pictures, **{"a.png": "", "labels.csv": "filepath,title\na.png,a cat\n"})
    (source / "old.csv").mkdir()
    assert found(source, tmp_path / "s") == {"a.png": ("train", ["a cat"])}


def test_a_caption_that_looks_like_a_list_warns_of_nothing(tmp_path: Path, pictures) -> None:
    table = "filepath,title\na.png,\"['a \\d cat']\"\n"
    source = lay(tmp_path, pictures, **{"a.png": "", "labels.csv": table}) / "labels.csv"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(source, tmp_path / "s") == {"a.png": ("train", ["a \\d cat"])}
