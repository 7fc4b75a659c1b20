"""One picture as files of every kind that people have: modes, transparency, palettes, depths, frames, orientations."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def colours(width: int, height: int) -> np.ndarray:
    """``(height, width, 4)`` uint8: smooth colours, hard edges, and an alpha with holes, a soft edge and something opaque."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    red = 128 + 100 * np.sin(9 * x + 5 * y)
    alpha = 255 * np.clip(3 - 6 * np.hypot(x - 0.4, y - 0.6), 0, 1)
    return np.stack([red, 255 * (x > 0.4), 255 * (y > 0.7) * (1 - x), alpha], axis=2).astype(np.uint8)


def files(width: int, height: int) -> dict[str, bytes]:
    """Kind -> file, of all kinds that stock open_clip reads sensibly."""
    pixels = colours(width, height)
    rgba = Image.fromarray(pixels)
    rgb, grey, alpha = rgba.convert("RGB"), rgba.convert("L"), rgba.getchannel("A")
    palette = rgb.quantize(60)
    turned = Image.Exif()
    turned[0x0112] = 6
    upside = Image.Exif()
    upside[0x0112] = 3
    two = {"save_all": True, "append_images": [rgb.transpose(Image.Transpose.ROTATE_180)], "duration": 100}
    lossless = {"lossless": True}
    kinds = {
        "png rgb": (rgb, "PNG", {}),
        "png rgba": (rgba, "PNG", {}),
        "png grey": (grey, "PNG", {}),
        "png grey and alpha": (Image.merge("LA", (grey, alpha)), "PNG", {}),
        "png palette": (palette, "PNG", {}),
        "png palette, one transparent": (palette, "PNG", {"transparency": 7}),
        "png palette, each its alpha": (palette, "PNG", {"transparency": bytes(range(0, 240, 4))}),
        "png palette of 4": (rgb.quantize(4), "PNG", {"bits": 2}),
        "png 1 bit": (grey.convert("1"), "PNG", {}),
        "png grey, one transparent": (grey, "PNG", {"transparency": int(grey.getpixel((0, 0)))}),
        "png rgb, one transparent": (rgb, "PNG", {"transparency": rgb.getpixel((0, 0))}),
        "png animated": (rgba, "PNG", {**two, "append_images": [rgba.rotate(180)]}),
        "png turned": (rgb, "PNG", {"exif": turned}),
        "jpeg": (rgb, "JPEG", {"quality": 90}),
        "jpeg progressive": (rgb, "JPEG", {"progressive": True, "subsampling": 2}),
        "jpeg grey": (grey, "JPEG", {}),
        "jpeg cmyk": (rgb.convert("CMYK"), "JPEG", {}),
        "jpeg turned": (rgb, "JPEG", {"exif": turned}),
        "jpeg upside down": (rgb, "JPEG", {"exif": upside}),
        "jpeg of several pictures": (rgb, "MPO", {"save_all": True, "append_images": [rgb.rotate(180)]}),
        "webp": (rgb, "WEBP", {}),
        "webp rgba": (rgba, "WEBP", lossless),
        "webp animated": (rgba, "WEBP", {**two, **lossless, "append_images": [rgba.rotate(180)]}),
        "webp turned": (rgb, "WEBP", {**lossless, "exif": turned}),
        "gif": (palette, "GIF", {}),
        "gif grey": (grey, "GIF", {}),
        "gif transparent": (palette, "GIF", {"transparency": 3}),
        "gif animated": (palette, "GIF", {**two, "append_images": [palette.rotate(180)]}),
        "bmp": (rgb, "BMP", {}),
        "bmp 1 bit": (grey.convert("1"), "BMP", {}),
        "bmp palette": (palette, "BMP", {}),
        "bmp rgba": (rgba, "BMP", {}),
        "ppm": (rgb, "PPM", {}),
        "pgm": (grey, "PPM", {}),
        "jpeg 2000": (rgb, "JPEG2000", {}),
        "jpeg 2000 rgba": (rgba, "JPEG2000", {}),
        "tiff rgb": (rgb, "TIFF", {}),
        "tiff rgba": (rgba, "TIFF", {}),
        "tiff grey and alpha": (Image.merge("LA", (grey, alpha)), "TIFF", {}),
        "tiff palette": (palette, "TIFF", {}),
        "tiff 1 bit": (grey.convert("1"), "TIFF", {"compression": "group4"}),
        "tiff cmyk": (rgb.convert("CMYK"), "TIFF", {"compression": "tiff_lzw"}),
        "tiff lab": (Image.merge("LAB", rgb.split()), "TIFF", {}),
        "tiff ycbcr": (rgb.convert("YCbCr"), "TIFF", {}),
        "tiff jpeg": (rgb, "TIFF", {"compression": "jpeg"}),
        "tiff turned": (rgb, "TIFF", {"exif": turned}),
        "tiff of several pages": (rgb, "TIFF", {"save_all": True, "append_images": [rgb.rotate(180)]}),
        "tiff 16 bits, none above 255": (Image.fromarray(np.asarray(grey).astype(np.uint16)), "TIFF", {}),
        "tiff 32 bits, none above 255": (Image.fromarray(np.asarray(grey).astype(np.int32)), "TIFF", {}),
        "png 16 bits, none above 255": (Image.fromarray(np.asarray(grey).astype(np.uint16)), "PNG", {}),
    }
    contents = {kind: encoded(image, format, **options) for kind, (image, format, options) in kinds.items()}
    deep = pixels.astype(np.uint16) * 257
    return contents | {
        "png rgb of 16 bits": sixteen_bit_png(deep[..., :3], 2),
        "png rgba of 16 bits": sixteen_bit_png(deep, 6),
        "png grey and alpha of 16 bits": sixteen_bit_png(deep[..., 2:], 4),
    }


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """An image as a file."""
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def sixteen_bit_png(values: np.ndarray, colour_type: int) -> bytes:
    """``(H, W, C)`` uint16 as a PNG, whose colours of 16 bits PIL reads and does not write."""
    height, width = values.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def tiff(size: tuple[int, int], tags: dict[int, tuple[int, ...]], strip: bytes) -> bytes:
    """An uncompressed little-endian TIFF of one strip, with tags that PIL reads and does not write."""
    given = {256: (size[0],), 257: (size[1],), 259: (1,), 273: (8,), 278: (size[1],), 279: (len(strip),)} | tags
    values, entries = b"", b""
    after = 8 + len(strip)
    for tag, numbers in sorted(given.items()):
        packed = struct.pack(f"<{len(numbers)}I" if tag == 279 else f"<{len(numbers)}H", *numbers)
        if len(packed) > 4:
            packed, values = struct.pack("<I", after + len(values)), values + packed
        entries += struct.pack("<HHI", tag, 4 if tag == 279 else 3, len(numbers)) + packed.ljust(4, b"\0")
    directory = struct.pack("<H", len(given)) + entries + bytes(4)
    return struct.pack("<2sHI", b"II", 42, after + len(values)) + strip + values + directory
