"""Generates public pictures, each with an unrelated word. From them, dpfed makes the default basis of private moments.

One third of the pictures are dead leaves (`dpfed.data.generated.dead_leaves`), which fill the picture like a scene. One third
show a few of these leaves on a white ground, like objects. One third show characters of a font that matplotlib ships, like
icons. The words are names of things (`dpfed.data.generated.words`).
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dpfed.data.generated.dead_leaves import VERSION, draw, draw_apart, uniforms_of
from dpfed.data.generated.procedural import LARGEST, ImportProgress
from dpfed.data.generated.words import public_words
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore, open_or_write
from dpfed.data.store.writing import StoreWriter

NAME = "things"
_SEED = 2**32 - 3  # a rehearsal has it too (`dpfed.planning.simulated`); the pictures of both are public
_SIGNS = ((0x21, 0x250), (0x2190, 0x2C00), (0x1F000, 0x1F700))  # letters; arrows, shapes and dingbats; faces and others
_SIGN, _GROUND = 7, 5  # numbers of uniforms of a sign, and of what is behind the signs


def things_store(records: int, folder: str | Path, size: int, progress: ImportProgress | None = None) -> RecordStore:
    """Opens a public store of generated pictures, each with an unrelated word; the store is generated on first use.

    Args:
        records: Number of pictures.
        folder: Folder that keeps the store.
        size: Side of the images, pixels. If it is above `LARGEST`, the images in the store have the side `LARGEST`.
        progress: Function that is called with (pictures so far, number of all pictures) while the pictures are generated.

    Raises:
        UserError: If the store cannot be written or is damaged.
    """
    side, words = min(size, LARGEST), public_words(records)

    def write(target: Path) -> None:
        with StoreWriter(target, name=NAME, kind="image-text", size=side, public=True) as writer:
            for number in range(records):
                writer.add(RecordInput(str(number), picture(number, side), (words[number % len(words)],), split="train"))
                if progress is not None and (number + 1) % 100 == 0:
                    progress(number + 1, records)

    return open_or_write(things_path(records, folder, size), write)


def things_path(records: int, folder: str | Path, size: int) -> Path:
    """Returns the path of the store that `things_store` opens or generates, for the same arguments."""
    words = public_words(records)
    digest = hashlib.blake2b("\n".join(words).encode(), digest_size=4).hexdigest()  # another version of timm has other words
    return Path(folder) / f"{NAME}-v{VERSION}-{min(size, LARGEST)}px-{records}-{digest}"


def picture(number: int, size: int) -> np.ndarray:
    """Draws a picture, ``(size, size, 3)`` uint8.

    Args:
        number: Number of the picture, which also decides its kind.
        size: Side of the picture, pixels.
    """
    which, kind = divmod(number, 3)
    if kind == 0:
        return draw(_SEED, 0, which, size).pixels
    return draw_apart(_SEED, 1, which, size) if kind == 1 else _signs(which, size)


def _signs(number: int, size: int) -> np.ndarray:
    """Draws one or two characters of a font, each in one colour, mostly on a white ground; ``(size, size, 3)`` uint8."""
    uniforms, signs = uniforms_of(_SEED, 2, number, _GROUND + 2 * _SIGN), _signs_of_the_font()
    ground, each = uniforms[:_GROUND], uniforms[_GROUND:].reshape(2, _SIGN)
    image = Image.new("RGB", (size, size), (255, 255, 255) if ground[0] < 0.6 else _colour(ground[2:], 256))
    canvas = ImageDraw.Draw(image)
    for sign in each[: 1 if ground[1] < 0.6 else 2]:
        font = ImageFont.truetype(_font(), max(1, round(size * (0.4 + 0.5 * sign[0]))))
        across, down = (size * (0.2 + 0.6 * sign[1:3])).tolist()
        canvas.text((across, down), signs[int(sign[3] * len(signs))], _colour(sign[4:], 220), font, "mm")
    return np.array(image)


def _colour(uniforms: np.ndarray, below: int) -> tuple[int, int, int]:
    red, green, blue = (uniforms * below).astype(int).tolist()
    return red, green, blue


@functools.cache
def _font() -> str:
    import matplotlib as mpl

    return str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


@functools.cache
def _signs_of_the_font() -> list[str]:
    from matplotlib.ft2font import FT2Font

    return [chr(code) for code in sorted(FT2Font(_font()).get_charmap()) if any(first <= code < end for first, end in _SIGNS)]
