"""Image files of every format, damaged, and files that declare more than they hold."""

from __future__ import annotations

import io
import resource
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from dpfed.data.decoding import BrokenImage, decode, decoded, memory
from dpfed.data.resizing import square
from tests.data.views.files_of_all_modes import encoded, files, sixteen_bit_png, tiff
from tests.fuzz.damage import damaged
from tests.fuzz.profiles import Effort, answered_in_time, efforts

FILES = files(13, 9)
WAYS = st.sampled_from(["crop", "squash", "pad"])


def read(content: bytes, resize: str = "crop", size: int = 8) -> np.ndarray | None:
    """The square of a file, or ``None`` for one that is refused with a reason."""
    try:
        image = decode(content)
    except BrokenImage as error:
        assert str(error).strip() and "\n" not in str(error) and len(str(error)) < 500
        return None
    assert memory(content) == len(content)
    pixels = square(image, size, resize)
    assert pixels.shape == (3, size, size) and pixels.dtype == np.uint8
    return pixels


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of PIL's readers, about damaged metadata
@efforts
def test_damaged_files(effort: Effort) -> None:
    effort.tries(300, read, st.sampled_from(sorted(FILES)).flatmap(lambda kind: damaged(FILES[kind])), WAYS)


@pytest.mark.filterwarnings("ignore")
@efforts
def test_any_bytes_behind_a_signature(effort: Effort) -> None:
    heads = st.sampled_from(sorted({content[:length] for content in FILES.values() for length in (4, 12, 40)}))
    effort.tries(100, lambda head, tail: read(head + tail), heads, st.binary(max_size=200))


def declared(kind: str, width: int, height: int) -> bytes:
    """A small file that says that it is of some size."""
    if kind == "png":
        png = bytearray(sixteen_bit_png(np.zeros((1, 1, 3), np.uint16), 2))
        png[16:24] = struct.pack(">II", width, height)
        png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
        return bytes(png)
    if kind == "bmp":
        bmp = bytearray(FILES["bmp"])
        bmp[18:26] = struct.pack("<ii", width % 2**31, height % 2**31)
        return bytes(bmp)
    if kind == "pgm":
        return b"P5 %d %d 255\n" % (width, height)
    if kind == "gif":
        gif = bytearray(FILES["gif"])
        gif[6:10] = struct.pack("<HH", width % 2**16, height % 2**16)
        return bytes(gif)
    if kind == "jpeg":
        jpeg = bytearray(FILES["jpeg"])
        place = jpeg.index(b"\xff\xc0") + 5
        jpeg[place : place + 4] = struct.pack(">HH", height % 2**16, width % 2**16)
        return bytes(jpeg)
    return tiff((width % 2**16, height % 2**16), {258: (8,), 262: (1,)}, bytes(4))


SIDES = st.one_of(
    st.sampled_from([0, 1, 80, 2**14, 2**15, 2**16 - 1, 2**16, 2**20, 2**26, 2**31 - 1, 2**31, 2**32 - 1]),
    st.integers(0, 2**32 - 1),
)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@efforts
def test_declared_sizes_do_not_fill_the_memory(effort: Effort) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kinds = st.sampled_from(["png", "bmp", "pgm", "gif", "jpeg", "tiff"])
    effort.tries(
        150, lambda kind, width, height, resize: read(declared(kind, width, height), resize), kinds, SIDES, SIDES, WAYS
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KB


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", [(12_000, 9_000), (20_000, 20_000), (60_000, 60_000)])
def test_a_bomb_is_refused_before_it_is_unpacked(side: tuple[int, int]) -> None:
    packed = zlib.compress(bytes(1 << 20), 9)
    bomb = declared("png", *side)
    place = bomb.index(b"IDAT") - 4
    length = struct.unpack(">I", bomb[place : place + 4])[0]
    bomb = bomb[:place] + struct.pack(">I", len(packed)) + b"IDAT" + packed + bomb[place + 8 + length :]
    with answered_in_time(1), pytest.raises(BrokenImage, match="more than 89,478,485 pixels"):
        decode(bomb)


def test_images_without_pixels_are_refused() -> None:
    for image in (Image.new("RGB", (0, 5)), Image.new("L", (3, 0)), np.zeros((0, 3, 3), np.uint8), b""):
        with pytest.raises(BrokenImage):
            decode(image)
    flat = io.BytesIO()
    Image.new("RGB", (200_000, 1)).save(flat, format="PNG")
    for resize in ("crop", "squash", "pad"):
        assert read(flat.getvalue(), resize, 224).shape == (3, 224, 224)


def test_a_jpeg_with_endless_scans_is_refused_at_once() -> None:
    buffer = io.BytesIO()
    Image.new("L", (9000, 9000), 100).save(buffer, "JPEG", progressive=True, quality=10)
    jpeg = buffer.getvalue()[:-2]
    scan = jpeg[jpeg.rindex(b"\xff\xda") :]
    for junk in (b"", b"\0junk", b"\xff\xff"):  # between the scans, which decoders step over
        with answered_in_time(1), pytest.raises(BrokenImage, match="more than 50 scans"):
            decode(jpeg + (junk + scan) * 3000 + b"\xff\xd9")


def test_what_follows_a_jpeg_is_not_counted_as_its_scans() -> None:
    film = FILES["jpeg progressive"] + bytes(1000) + b"\xff\xda" * 500  # as phones append one to a photograph
    assert (read(film) == read(FILES["jpeg progressive"])).all()


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.data.decoding._LARGE", 100)
    inside: list[int] = []

    def hold(content: bytes) -> int:
        with decoded(content):
            inside.append(1)
            time.sleep(0.02)
            most = len(inside)
            inside.pop()
            return most

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(hold, [FILES["jpeg"]] * 8)) == {1}
        assert max(pool.map(hold, [encoded(Image.new("L", (9, 9)), "PNG")] * 8)) > 1
