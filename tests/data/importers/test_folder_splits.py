"""A folder of images: no test set is trained on, and no class is taken for a split without a word."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.data.importers import import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from tests.data.importers.test_lost_files import archive


def found(store: Path) -> dict[str, tuple[str, str | None]]:
    """Path of each image -> its split and its class."""
    opened = RecordStore.open(store)
    split = {row: name for name in ("train", "validation", "test") for row in opened.split(name).tolist()}
    names = [*opened.label_names.get("label", ()), None]
    numbers = opened.labels["label"].tolist() if opened.labels else [-1] * len(opened)
    return {id: (split[row], names[numbers[row]]) for row, id in enumerate(opened.ids(np.arange(len(opened))))}


def tree(root: Path, pictures, *folders: str) -> Path:
    for folder in folders:
        pictures.file(root / folder / "x.png")
    return root


LAYOUTS = {
    "training_set/{} test_set/{}": ("training_set", "test_set"),
    "train_images/{} val_images/{}": ("train_images", "val_images"),
    "Train Data/{} Test Data/{}": ("Train Data", "Test Data"),
    "archive/train/{} archive/test/{}": ("archive/train", "archive/test"),
    "a/b/Training/{} a/b/Testing/{}": ("a/b/Training", "a/b/Testing"),
    "seg_train/seg_train/{} seg_test/seg_test/{}": ("seg_train/seg_train", "seg_test/seg_test"),
    "train/images/{} test/images/{}": ("train/images", "test/images"),
    "images/trainset/{} images/testset/{}": ("images/trainset", "images/testset"),
    "TRAIN2017/{} Val2017/{}": ("TRAIN2017", "Val2017"),
    "xTrain/{} dev/{}": ("xTrain", "dev"),
}


@pytest.mark.parametrize("places", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("classes", [("cats", "dogs"), ("test tubes", "train"), ()])
def test_folders_that_speak_of_splits_are_splits(tmp_path: Path, pictures, places: tuple[str, str], classes) -> None:
    source = tree(tmp_path / "in", pictures, *(f"{place}/{one}".rstrip("/") for place in places for one in classes or ("",)))
    other = "test" if "est" in places[1] else "validation"
    import_records(source, tmp_path / "s")
    assert found(tmp_path / "s") == {
        f"{place}/{one}/x.png".replace("//", "/"): (split, one or None)
        for place, split in zip(places, ("train", other), strict=True)
        for one in classes or ("",)
    }


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (["archive/cats", "archive/dogs"], ["cats", "dogs"]),
        (["cats", "dogs/deep"], ["cats", "dogs"]),
        (["fold1/cats", "fold1/dogs", "fold_2/cats"], ["cats", "dogs", "cats"]),
        (["fold1", "fold2"], ["fold1", "fold2"]),
        (["1/a", "2/b"], ["1", "2"]),
        (["images"], [None]),
        (["cats"], ["cats"]),
        (["cafe\u0301", "caf\u00e9"], ["caf\u00e9"] * 2),
    ],
)
def test_what_holds_everything_is_no_class(tmp_path: Path, pictures, folders: list[str], classes: list) -> None:
    import_records(tree(tmp_path / "in", pictures, *folders), tmp_path / "s")
    assert found(tmp_path / "s") == {f"{folder}/x.png": ("train", one) for folder, one in zip(folders, classes, strict=True)}


def test_splits_below_the_classes_are_splits(tmp_path: Path, pictures) -> None:
    import_records(tree(tmp_path / "in", pictures, "cats/train", "cats/test", "dogs/train"), tmp_path / "s")
    assert found(tmp_path / "s") == {
        "cats/train/x.png": ("train", "cats"),
        "cats/test/x.png": ("test", "cats"),
        "dogs/train/x.png": ("train", "dogs"),
    }


@pytest.mark.parametrize(
    ("folders", "said", "results"),
    [
        (
            ["bottle/train/good", "bottle/test/broken", "cable/train/good"],
            "folder-split-unclear",
            [["bottle", "bottle", "cable"], ["bottle", "bottle", "cable"]],
        ),
        (["train", "bus"], "bus .*folder-beside", [["train", "bus"]]),
        (["valid", "invalid"], "invalid .*folder-beside", [["valid", "invalid"]]),
        (["archive/train station", "archive/airport"], "folder-beside", [["train station", "airport"]]),
        (["train/cats", "dogs/train"], "folder-split-unclear", [["train", "dogs"]]),
        (["bus/train/x", "train/test/y"], "folder-split-unclear", [["bus", "train"], ["bus", "train"]]),
        (["val", "test"], "folder-no-training", [None, ["val", "test"]]),
        (["val/x", "val/y", "test/x"], "folder-no-training", [None]),
    ],
)
def test_where_the_intent_is_not_clear_the_commands_say_it(tmp_path: Path, pictures, folders, said, results) -> None:
    source = tree(tmp_path / "in", pictures, *folders)
    with pytest.raises(UserError, match=said) as caught:
        import_records(source, tmp_path / "refused")
    commands = [part for part in str(caught.value).split("`") if part.startswith("dpfed data import")]
    assert len(commands) == len(results)
    for number, (command, classes) in enumerate(zip(commands, results, strict=True)):
        words = shlex.split(command.replace("DEST", str(tmp_path / f"s{number}")))[2:]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
        got = found(tmp_path / f"s{number}")
        if classes is None:  # one folder alone
            assert {split for split, _ in got.values()} == {"train"} and len(got) == 1
            continue
        assert [got[f"{folder}/x.png"][1] for folder in folders] == classes
        assert {split for split, _ in got.values()} == ({"train"} if "--splits 0" in command else {"train", "test"})


@pytest.mark.parametrize(
    ("folders", "level"),
    [(["cats/val", "dogs/test"], None), (["a/cats/val", "a/dogs/test"], None), (["cats/val", "dogs/val"], 2), (["val"], 1)],
)
def test_held_out_images_alone_are_refused(tmp_path: Path, pictures, folders, level) -> None:
    source = tree(tmp_path / "in", pictures, *folders)
    with pytest.raises(UserError, match=r"/train, .*--splits 0.*folder-all-held-out"):
        import_records(source, tmp_path / "refused", splits=level)
    import_records(source, tmp_path / "s", splits=0)
    tree(source, pictures, str(Path(folders[0]).with_name("train")))
    import_records(source, tmp_path / "t", splits=level)
    assert "train" in {split for split, _ in found(tmp_path / "t").values()}


@pytest.mark.parametrize("wrapper", ["data", "archive", "a/b", ""])
@pytest.mark.parametrize(
    ("divided", "aside", "named", "use"),
    [
        (("train", "test"), "x.png", "x.png", "train/x.png"),
        (("train", "test"), "dogs/deep/x.png", "dogs", "val/deep/x.png"),
        (("cats/train", "cats/test"), "dogs/x.png", "dogs", "dogs/train/x.png"),
        (("cats/train", "cats/test"), "x.png", "x.png", "cats/train/x.png"),
    ],
)
@pytest.mark.parametrize("leave_out", [False, True])
def test_what_lies_beside_the_splits_is_named_and_the_advice_works(
    tmp_path: Path, pictures, wrapper: str, divided, aside: str, named: str, use: str, leave_out: bool
) -> None:
    source = tmp_path / "in"
    top = tree(source / wrapper, pictures, *(f"{folder}/{n}" for folder in divided for n in "ab"))
    if len(Path(divided[0]).parts) > 1:  # classes above the splits
        for folder in divided:
            for n in "ab":
                (top / folder / n / "x.png").rename(top / folder / f"{n}.png")
                (top / folder / n).rmdir()
    pictures.file(top / aside)
    with pytest.raises(UserError, match="folder-beside") as caught:
        import_records(source, tmp_path / "s")
    assert str(caught.value).startswith(f"{top / named} ")
    if leave_out:
        (top / named).rename(tmp_path / "out")
    else:
        moved = Path(use).parent
        assert moved.parts[0] == "val" or str(top / moved) in str(caught.value)
        (top / use).parent.mkdir(parents=True, exist_ok=True)
        (top / aside).rename(top / use)
    import_records(source, tmp_path / "s")
    assert len(found(tmp_path / "s")) == 5 - leave_out


def test_a_folder_beside_all_three_splits_is_not_to_take_the_name_of_one(tmp_path: Path, pictures) -> None:
    source = tree(tmp_path / "in", pictures, "train/a", "val/a", "test/a", "extra/b")
    with pytest.raises(UserError, match=f"to use it, move what it holds into {source / 'train'} or the like.*folder-beside"):
        import_records(source, tmp_path / "s")
    (source / "extra" / "b").rename(source / "train" / "b")
    (source / "extra").rmdir()
    import_records(source, tmp_path / "s")
    assert found(tmp_path / "s")["train/b/x.png"] == ("train", "b")


def test_a_class_in_other_capitals_in_another_split_is_refused(tmp_path: Path, pictures) -> None:
    source = tree(tmp_path / "in", pictures, "train/Cat", "val/cat", "train/a", "train/A")
    with pytest.raises(UserError, match="'Cat' and 'cat' .*folder-capitals"):
        import_records(source, tmp_path / "s")
    (source / "val/cat").rename(source / "val/Cat")
    import_records(source, tmp_path / "s")
    assert {name for _, name in found(tmp_path / "s").values()} == {"A", "Cat", "a"}


MASKS = [
    (("train/images", "train/masks", "test/images"), 1),
    (("images", "Labels"), 0),
    (("cat/images", "cat/masks"), 0),
    (("train", "train_masks"), 1),
    (("", "masks"), 0),
    (("photo", "mask", "edges"), 0),
]


@pytest.mark.parametrize(("places", "level"), MASKS)
def test_images_beside_their_masks_are_refused(tmp_path: Path, pictures, places: tuple[str, ...], level: int) -> None:
    source = tree(tmp_path / "in", pictures, *places)
    with pytest.raises(UserError, match=f"--splits {level}`.*folder-masks"):
        import_records(source, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    if places[0] != "train":
        assert import_records(source, tmp_path / "s", splits=level).counts["train"] >= 1


@pytest.mark.parametrize("places", [("with_mask", "without_mask"), ("labels", "boxes"), ("masks/a", "masks/b")])
def test_classes_that_are_no_masks_are_classes(tmp_path: Path, pictures, places: tuple[str, ...]) -> None:
    import_records(tree(tmp_path / "in", pictures, *places), tmp_path / "s")
    assert {label for _, label in found(tmp_path / "s").values()} == {Path(place).name for place in places}


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["trainA", "trainB", "testA", "testB"], "testA, testB as test; trainA, trainB as train"),
        (["train/x", "train_extra/x", "val/x"], "train, train_extra as train"),
        (["train_extra", "val"], "train_extra as train"),
        (["train2014", "train2017", "val2014"], "train2014, train2017 as train"),
        (["cats/train", "cats/testA", "cats/testB"], "testA, testB as test"),
    ],
)
def test_folders_that_may_be_no_split_of_that_name_are_named(tmp_path: Path, pictures, folders, said: str) -> None:
    heard: list[str] = []
    import_records(tree(tmp_path / "in", pictures, *folders), tmp_path / "s", say=heard.append)
    notice = f"By their names, these folders count as splits: {said}. Move away those that do not belong to these splits."
    assert heard == [notice]


@pytest.mark.parametrize("places", [*LAYOUTS.values(), ("fold1/train", "fold2/train"), ("train", "test2017")])
def test_plain_names_of_splits_are_no_news(tmp_path: Path, pictures, places: tuple[str, ...]) -> None:
    heard: list[str] = []
    import_records(tree(tmp_path / "in", pictures, *places), tmp_path / "s", say=heard.append)
    assert heard == [] or places == ("xTrain", "dev")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["testA-0.parquet", "testB-0.parquet", "train-0.parquet"], "testA-0.parquet, testB-0.parquet as test"),
        (["train-0.parquet", "train_extra-0.parquet"], "train-0.parquet, train_extra-0.parquet as train"),
        (["testA/0.parquet", "testB/0.parquet", "train/0.parquet"], "testA, testB as test"),
        (["train-00000-of-00002-b42a775f407cee45.parquet", "train-00001-of-00002-0a1b2c3d4e5f6a7b.parquet"], ""),
        (["train/part-0-1c2d3e4f-0a1b-4c2d-8e3f-001122334455.parquet", "val/part-0.parquet"], ""),
        (["cc3m-train-0000.tar", "cc3m-train-0001.tar", "cc3m-validation-0000.tar"], ""),
        (["train-0.tar", "train_extra-0.tar"], "train-0.tar, train_extra-0.tar as train"),
        (["train.csv", "train_extra.csv"], "train.csv, train_extra.csv as train"),
        (["train.csv", "test.csv"], ""),
    ],
)
def test_files_that_may_be_no_split_of_that_name_are_named(tmp_path: Path, pictures, names, said: str) -> None:
    for number, name in enumerate(names):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".parquet":
            pq.write_table(pa.table({"image": [pictures.png()]}), file)
        elif file.suffix == ".tar":
            archive(file, [("0.png", pictures.png())])
        else:
            file.write_text(f"filepath\n{pictures.file(file.with_name(f'{number}.png')).name}\n")
    heard: list[str] = []
    import_records(tmp_path / "in", tmp_path / "s", say=heard.append)
    notice = f"By their names, these files count as splits: {said}. Move away those that do not belong to these splits."
    assert heard == ([notice] if said else [])


def test_folders_in_the_paths_of_a_table_are_named_as_well(tmp_path: Path, pictures) -> None:
    source = tree(tmp_path / "in", pictures, "train", "testA", "testB")
    (source / "t.csv").write_text("filepath\ntrain/x.png\ntestA/x.png\ntestB/x.png\n")
    heard: list[str] = []
    import_records(source / "t.csv", tmp_path / "s", say=heard.append)
    assert len(heard) == 1 and "testA, testB as test" in heard[0]
