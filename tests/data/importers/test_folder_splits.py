"""A folder of images: no test set is trained on, and no class is taken for a split without a word."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfed.cli.data import app
from dpfed.data.importers import import_records
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError


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
        (["val/x", "test/x"], "folder-no-training", [["val", "test"]]),
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
        assert [got[f"{folder}/x.png"][1] for folder in folders] == classes
        assert {split for split, _ in got.values()} == ({"train"} if number == 0 else {"train", "test"})


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
