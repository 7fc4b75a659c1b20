"""Real pictures with names, as record stores: three public libraries, and CIFAR-10 with classes as captions.

The libraries are checkouts on this machine, and dpfed contains nothing of them: Mulberry's symbols of words
(github.com/mulberrysymbols/mulberry-symbols, CC BY-SA; `resvg_py` draws them), tiles of Dungeon Crawl Stone Soup
(github.com/crawl/tiles, releases/Nov-2015, CC0) and KDE's Oxygen icons (github.com/KDE/oxygen-icons, LGPL; faces are left out).
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter

_HELD_OUT = 7  # one of so many names, by the name's hash
_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
_CIFAR_TRAIN, _CIFAR_TEST = 30_000, 2_000


def symbols(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the names (``christmas tree``) and files of symbols."""
    for path in sorted((folder / "EN").glob("*.svg")):
        yield _name(path.stem), path


def tiles(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the names (``player cloak red``) and files of tiles."""
    for path in sorted(folder.rglob("*.png")):
        yield _name("/".join(path.relative_to(folder).with_suffix("").parts[2:])), path


def icons(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the names (``address book new``) and files of icons, the largest size first."""
    for size in ("128x128", "64x64", "48x48"):
        for path in sorted((folder / size).rglob("*.png")):
            if not path.is_symlink() and path.parent.name != "emotes":
                yield _name(path.stem), path


def named_store(named: Iterator[tuple[str, Path]], place: Path) -> RecordStore:
    """Writes a record store of pictures with one name each, or opens it if it exists.

    Args:
        named: Names and files of pictures. Of several equal names, or equal pictures, only the first is stored.
        place: Folder of the store.
    """

    def write(target: Path) -> None:
        names: set[str] = set()
        pictures: set[str] = set()
        with StoreWriter(target, name=place.name, kind="image-text", public=True) as writer:
            for name, path in named:
                with Image.open(_readable(path)) as image:
                    shown = Image.new("RGB", image.size, "white")
                    shown.paste(image.convert("RGBA"), mask=image.convert("RGBA").getchannel("A"))
                digest = hashlib.sha256(shown.tobytes()).hexdigest()
                if not name or name in names or digest in pictures:
                    continue
                names.add(name)
                pictures.add(digest)
                held_out = int(hashlib.sha256(name.encode()).hexdigest(), 16) % _HELD_OUT == 0
                writer.add(RecordInput(name, _png(shown), (name,), split="test" if held_out else "train"))

    return open_or_write(place, write)


def cifar_store(folder: Path, place: Path) -> RecordStore:
    """Writes a record store of CIFAR-10, or opens it if it exists. Each image has its class as a label and as a caption.

    Args:
        folder: Folder with train.parquet and test.parquet. The first 30,000 images are for training, 2,000 for testing.
        place: Folder of the store.
    """

    def write(target: Path) -> None:
        names = {"class": [f"a photo of a {name}" for name in _CLASSES]}
        with StoreWriter(target, name="CIFAR-10", kind="image-text", public=True, label_names=names) as writer:
            for split, count in (("train", _CIFAR_TRAIN), ("test", _CIFAR_TEST)):
                table = pq.read_table(folder / f"{split}.parquet").slice(0, count)
                image, label = table.column_names[:2]
                for number, row in enumerate(table.to_pylist()):
                    kind = row[label]
                    caption = (names["class"][kind],)
                    labels = {"class": kind}
                    writer.add(RecordInput(f"{split}-{number}", row[image]["bytes"], caption, labels, split=split))

    return open_or_write(place, write)


def _name(stem: str) -> str:
    words = [word for word in re.split(r"[\W_\d]+", stem.lower()) if word not in ("", "unused")]
    return " ".join(dict.fromkeys(words))


def _readable(path: Path) -> Path | io.BytesIO:
    """Returns a file that PIL can read; an SVG drawing is rendered at 128 pixels."""
    if path.suffix != ".svg":
        return path
    from resvg_py import svg_to_bytes  # a package for this benchmark only

    return io.BytesIO(svg_to_bytes(svg_path=str(path), width=128, height=128))


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
