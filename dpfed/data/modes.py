"""The modes of images (RGB, with transparency, a palette, 16 bits, ...) and how each becomes RGB.

Stock open_clip first scales an image in the mode of its file, and then converts it to RGB. A model trained here must see the
same pixels in open_clip, so dpfed works in the same order. In a few modes, however, this order destroys images: open_clip turns
them white or black, or fails. dpfed first converts images in these modes, and tells the caller.
"""

from __future__ import annotations

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

_EIGHT_BITS = 255
_TWELVE_BITS = 4095
_BITS_PER_SAMPLE = 258  # the number of the TIFF tag

SIXTEEN_BITS = "16-bit greyscale scaled to 8 bits"
DARK = "16-bit greyscale scaled to 8 bits and almost black, as no value is above 4,095"
PALETTE_WITH_ALPHA = "palette with an alpha channel turned into RGBA"
GREY_WITH_ALPHA = "greyscale multiplied by its alpha turned back into greyscale"


class UnknownRange(ValueError):
    """The error for an image whose values for black and white are unknown; the message says why in a few words."""


def survivable(image: Image.Image) -> tuple[Image.Image, str | None]:
    """Returns an image in a mode that scaling and open_clip's conversion to RGB do not destroy.

    Values of 16 bits lose their lower 8 bits, and values of 12 bits their lower 4. If no value is above 255, open_clip reads
    the values as 8 bits, and so does dpfed.

    Args:
        image: Loaded image, in any mode.

    Returns:
        The image, and its conversion in a few words, or ``None`` if it is unchanged.

    Raises:
        UnknownRange: If the pixels are floating-point numbers, or if the mode is ``I`` and a pixel is negative or above 65,535
            (in a TIFF file: above 255).
    """
    if image.mode == "F":
        raise UnknownRange("floating-point pixels have no known range")
    if image.mode.startswith("I"):
        return _eight_bits(image)
    if image.mode == "PA":
        return image.convert("RGBA"), PALETTE_WITH_ALPHA
    if image.mode == "La":
        return image.convert("LA"), GREY_WITH_ALPHA
    return image, None


def rgb(image: Image.Image) -> Image.Image:
    """Converts an image to RGB as open_clip does: transparency is dropped, not composited."""
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.copy()  # PIL would drop the transparency as well, with a warning
        del image.info["transparency"]
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image.Image) -> tuple[Image.Image, str | None]:
    values = np.asarray(image)
    lowest, highest = values.min(), values.max()
    if lowest >= 0 and highest <= _EIGHT_BITS:
        return image, None
    # PIL scales a .pgm to 16 bits, and sometimes opens a 16-bit PNG in this mode; a TIFF in it has signed or 32-bit numbers.
    if image.mode == "I" and (lowest < 0 or highest > 65535 or image.format == "TIFF"):
        raise UnknownRange("32-bit or signed pixels have no known range")
    twelve = isinstance(image, TiffImageFile) and image.tag_v2.get(_BITS_PER_SAMPLE) == (12,)
    scaled = Image.fromarray((values >> (4 if twelve else 8)).astype(np.uint8))
    return scaled, DARK if highest <= _TWELVE_BITS and not twelve else SIXTEEN_BITS
