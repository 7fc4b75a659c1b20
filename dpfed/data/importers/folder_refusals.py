"""Refuses folders of images whose splits or classes are not clear, and says which commands import them."""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from dpfed.data.importers.splits import split_of
from dpfed.errors import UserError

SAYS_NOTHING = frozenset({"image", "images", "img", "imgs", "jpegimages", "photos", "pictures", "data", "dataset", "files"})
_MASKS = frozenset({"mask", "masks", "segmentation", "segmentations", "annotations", "gt", "groundtruth", "ground_truth"})
_LABELS = frozenset({"label", "labels"})  # masks where they lie beside a folder of images, else perhaps a class


@functools.lru_cache(maxsize=65536)
def split_in(folder: str) -> str | None:
    """Returns the split that the name of a folder contains; ``None``: it contains none, or several."""
    return split_of(Path(folder))


def refuse_masks(root: Path, files: Sequence[Path]) -> None:
    """Refuses images beside their masks, because the masks would become records.

    Args:
        root: Folder that is imported.
        files: Images below the root.

    Raises:
        UserError: If some of the folders with images, but not all, are named like folders of masks. The message says how to
            import the images alone, and how to import both.
    """
    folders = [file.relative_to(root).parts[:-1] for file in files]
    names = {part.lower() for parts in folders for part in parts}
    masks = _MASKS | (_LABELS if names & SAYS_NOTHING else frozenset())

    def is_mask(part: str) -> bool:  # train_masks, too; with_mask is a class
        _, _, last = part.lower().rpartition("_")
        return part.lower() in masks or (last in masks and split_in(part) is not None)

    mask_folders = sorted({"/".join(parts) for parts in folders if any(map(is_mask, parts))})
    if mask_folders and not all(any(map(is_mask, parts)) for parts in folders):
        split = next((level for level, part in enumerate(folders[0], start=1) if split_in(part)), 0)
        raise UserError(
            f"{root}: {mask_folders[0]} looks like a folder of masks beside the images that they belong to. To import the "
            f"images alone, move such folders out of {root}. To import both: {commands(root, split)} [folder-masks]"
        )


def refuse_names(root: Path, files: Sequence[Path]) -> None:
    """Refuses images of which only the file names say the split, as in ``train_1.jpg`` and ``val_1.jpg``.

    Raises:
        UserError: If the file name of each image contains a split: for some images training, for others another split.
    """
    splits = set()
    for file in files:
        if (split := split_of(Path(file.stem))) is None:
            return
        splits.add(split)
    if "train" in splits and len(splits) > 1:
        raise UserError(
            f"the images in {root} are named after splits, as {files[0].name} is: move them into folders train, val and test. "
            f"{commands(root, 0)} [folder-split-in-names]"
        )


def beside(root: Path, file: Path, divided: Sequence[tuple[str, ...]]) -> UserError:
    """Returns the error for an image that lies beside the split folders.

    Args:
        root: Folder that is imported.
        file: Path of the image.
        divided: For each image below a split folder, the names of the folders above it, from `root` downwards. If no image has
            further folders below its split folder, the split folders may be classes themselves, and the message says how to
            import them as classes.
    """
    path = file.relative_to(root).parts
    split_at = [next(at for at, part in enumerate(parts) if split_in(part)) for parts in divided]

    def shared(parts: tuple[str, ...]) -> int:
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, parts, strict=False)))

    homes = sorted({parts[:at] for parts, at in zip(divided, split_at, strict=True)})  # folders that hold the split folders
    home = max(homes, key=lambda parts: (shared(parts), -len(parts)))
    top = root.joinpath(*path[: shared(home) + 1])
    what = "lies" if top == file else "holds images and lies"
    if top == file:
        use = f"move it into a folder such as {root.joinpath(*home, 'train')}"
    elif shared(home) < len(home):
        use = f"move its images into {top / 'train'} or the like"
    else:
        used = {split_in(parts[at]) for parts, at in zip(divided, split_at, strict=True) if parts[:at] == home}
        free = [name for name in ("train", "val", "test") if split_in(name) not in used]
        into = root.joinpath(*home, "train")
        use = f"rename it to {' or '.join(free)}" if free else f"move what it holds into {into} or the like"
    classes_below = any(at + 1 < len(parts) for parts, at in zip(divided, split_at, strict=True))
    either = "" if classes_below else f" {commands(root, 0)}"
    return UserError(
        f"{top} {what} beside the split folders: to leave it out, move it out of {root}; to use it, {use}.{either} "
        "[folder-beside]"
    )


def commands(root: Path, *levels: int) -> str:
    """Returns the commands that import a folder with the option ``--splits``, one for each of the given levels."""
    told = {0: "counts no folder as a split, reads the classes from the folders, and imports all images for training"}
    each = (
        f"`dpfed data import {shlex.quote(str(root))} DEST --splits {level}` "
        + told.get(level, f"reads the splits from the folders at level {level} below {root}, the classes from the others")
        for level in levels
    )
    return "; ".join(each) + "."
