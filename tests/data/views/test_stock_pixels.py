"""A model is trained on what stock open_clip would show it: compared with open_clip's own transform, never with ours."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpfed.config import DataConfig
from dpfed.data import modes
from dpfed.data.decoding import BrokenImage, decode, decoded, encode
from dpfed.data.importers import import_records
from dpfed.data.opening import open_records
from dpfed.data.resizing import square
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from tests.data.views.files_of_all_modes import colours, encoded, files, tiff
from tests.patience import run_to_end

pytest.importorskip("open_clip")

WAYS = {"crop": "shortest", "squash": "squash", "pad": "longest"}
# Landscape, portrait, square, fitting, a ribbon, small, and one whose JPEG could be decoded at half its size.
SIDES = [(75, 52), (41, 67), (48, 48), (32, 32), (133, 9), (20, 31), (150, 130)]
SIZE = 32


def stock(resize: str = "crop", interpolation: str = "bicubic", size: int = SIZE):
    """open_clip's transform for evaluation, to pixels in 0 .. 255."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    cfg = PreprocessCfg(size, mean=(0,) * 3, std=(1,) * 3, interpolation=interpolation, resize_mode=WAYS[resize])
    transform = image_transform_v2(cfg, is_train=False)
    return lambda image: (transform(image) * 255).round().to(torch.uint8)


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


def written(path: Path, images: dict[str, object], size: int | None = None) -> RecordStore:
    with StoreWriter(path, name="x", kind="image", size=size) as writer:
        for id, image in images.items():
            writer.add(RecordInput(id, image))
    return RecordStore.open(path)


def unlike(ids, mine: torch.Tensor, theirs: list[torch.Tensor]) -> list[str]:
    return [id for id, one, other in zip(ids, mine, theirs, strict=True) if not torch.equal(one, other)]


@pytest.fixture(scope="module")
def sources() -> dict[str, bytes]:
    return {f"{kind} {side}": file for side in SIDES for kind, file in files(*side).items()}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Palette images")  # open_clip's conversion causes it, not ours
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("resize", WAYS)
def test_files_of_every_mode_are_read_as_by_stock_open_clip(tmp_path, sources, resize, interpolation) -> None:
    store, transform = written(tmp_path / "s", sources), stock(resize, interpolation)
    seen = store.images(np.arange(len(sources)), SIZE, resize, interpolation)
    assert unlike(sources, seen, [transform(opened(file)) for file in sources.values()]) == []
    assert store.converted == {}


@pytest.mark.filterwarnings("ignore:Palette images")
def test_squares_of_an_import_are_those_of_stock_open_clip(tmp_path: Path, sources: dict[str, bytes]) -> None:
    store, transform = written(tmp_path / "s", sources, SIZE), stock()
    assert store.resized and store.size == SIZE
    assert unlike(sources, store.images(np.arange(len(store)), SIZE), [transform(opened(f)) for f in sources.values()]) == []


def test_pil_images_of_every_mode_are_seen_as_by_open_clip(tmp_path: Path) -> None:
    rgba = Image.fromarray(colours(41, 67))
    rgb, grey = rgba.convert("RGB"), rgba.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16))
    images = {image.mode: image for image in (rgba, rgb, grey, deep, rgb.quantize(9))}
    images |= {mode: rgb.convert(mode) for mode in ("1", "CMYK", "YCbCr", "LAB", "RGBX", "HSV", "I")}
    images |= {"LA": rgba.convert("LA"), "RGBa": rgba.convert("RGBa")}
    for resize in WAYS:
        seen = torch.stack([torch.from_numpy(square(decode(image), SIZE, resize)) for image in images.values()])
        assert unlike(images, seen, list(map(stock(resize), images.values()))) == []
    kept = {mode: image for mode, image in images.items() if mode not in ("RGBX", "HSV", "RGBa")}  # no file holds these
    store, transform = written(tmp_path / "s", kept), stock("pad")
    assert unlike(kept, store.images(np.arange(len(kept)), 32, "pad"), list(map(transform, kept.values()))) == []
    assert decode(encode(images["HSV"])).mode == "RGB" and decode(encode(images["RGBa"])).mode == "RGBA"


def destroyed() -> dict[str, tuple[bytes, str, Image.Image]]:
    """Files that stock open_clip turns white or black or cannot read: file, what is said, and the same in 8 bits."""
    pixels = colours(41, 67)
    grey, alpha = pixels[..., 0], pixels[..., 3]
    deep = grey.astype(np.uint16) * 256 + 99
    side = (41, 67)
    numbers = np.stack([grey // 8, alpha], 2)
    ramp = np.arange(256, dtype=np.uint16) * 257
    palette = Image.frombytes("P", side, numbers[..., 0].tobytes())
    palette.putpalette(np.stack([ramp, ramp[::-1], ramp // 2], 1).astype(">u2").view(np.uint8)[:, ::2].tobytes())
    with_alpha = palette.convert("RGBA")
    with_alpha.putalpha(Image.fromarray(alpha))
    multiplied = np.stack([grey.astype(int) * alpha // 255, alpha], 2).astype(np.uint8)
    eight = Image.fromarray(grey)
    twelve = np.zeros((67, 42), np.uint16)
    twelve[:, :41] = grey.astype(np.uint16) * 16 + 5
    pairs = twelve.reshape(-1, 2).astype(int)
    packed = np.stack([pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255], 1).astype(np.uint8)
    packed = packed.reshape(67, 63)[:, :62]  # a line of 41 values ends with half a byte
    tags = {277: (2,), 258: (8, 8)}
    return {
        "png": (encoded(Image.fromarray(deep), "PNG"), modes.SIXTEEN_BITS, eight),
        "tiff": (encoded(Image.fromarray(deep), "TIFF"), modes.SIXTEEN_BITS, eight),
        "big-endian tiff": (encoded(Image.fromarray(deep.astype(">u2")), "TIFF"), modes.SIXTEEN_BITS, eight),
        "pgm": (b"P5 41 67 65535\n" + deep.astype(">u2").tobytes(), modes.SIXTEEN_BITS, eight),
        "jpeg 2000": (encoded(Image.fromarray(deep), "JPEG2000"), modes.SIXTEEN_BITS, eight),
        "12 of 16 bits": (encoded(Image.fromarray(deep // 16), "PNG"), modes.DARK, Image.fromarray(grey // 16)),
        "12 bits": (tiff(side, {258: (12,), 262: (1,)}, packed.tobytes()), modes.SIXTEEN_BITS, eight),
        "palette": (
            tiff(side, tags | {262: (3,), 338: (2,), 320: (*ramp, *ramp[::-1], *(ramp // 2))}, numbers.tobytes()),
            modes.PALETTE_WITH_ALPHA,
            with_alpha,
        ),
        "multiplied": (
            tiff(side, tags | {262: (1,), 338: (1,)}, multiplied.tobytes()),
            modes.GREY_WITH_ALPHA,
            Image.frombytes("La", side, multiplied.tobytes()).convert("LA"),
        ),
    }


@pytest.mark.parametrize("size", [None, SIZE])
def test_images_that_open_clip_destroys_are_counted_conversions(tmp_path: Path, size: int | None) -> None:
    kinds = destroyed()
    store = written(tmp_path / "s", {name: file for name, (file, _, _) in kinds.items()}, size)
    seen = store.images(np.arange(len(kinds)), SIZE)
    expected = [stock()(copy) for _, _, copy in kinds.values()]  # of copies as the docs tell to make them
    assert unlike(kinds, seen, expected) == []
    said = [what for _, what, _ in kinds.values()]
    assert store.converted == {what: said.count(what) for what in said}
    for name, (file, what, _) in kinds.items():
        with decoded(file) as (_, conversion):
            assert conversion == what, name
        try:
            assert stock()(opened(file)).float().mean() in (0.0, 255.0) or what == modes.DARK or name == "12 bits"
        except ValueError:
            assert name == "multiplied"


@pytest.mark.parametrize("values", [np.full((9, 9), -3), np.full((9, 9), 70_000), np.full((9, 9), 300), np.full((9, 9), 0.5)])
def test_pixels_without_a_known_range_are_refused(values: np.ndarray) -> None:
    kind = np.float32 if values.dtype == float else np.int32
    with pytest.raises(BrokenImage, match="no known range"):
        decode(encoded(Image.fromarray(values.astype(kind)), "TIFF"))


@pytest.mark.long
@pytest.mark.parametrize("side", [(64, 1_000_000), (1_000_000, 64)])
@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
def test_a_ribbon_of_any_direction_is_scaled_in_little_memory(resize: str, side: tuple[int, int]) -> None:
    script = (
        "import resource; from PIL import Image; from dpfed.data.resizing import square;"
        f"image = Image.new('RGB', {side}, (7, 80, 200)); now = open('/proc/self/statm').read().split()[0];"
        "resource.setrlimit(resource.RLIMIT_AS, (int(now) * resource.getpagesize() + (600 << 20),) * 2);"
        f"print(square(image, 512, {resize!r})[:, 200:300, 200:300].max(axis=(1, 2)).tolist())"
    )
    done = run_to_end([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[7, 80, 200]", done.stderr[-500:]


@pytest.mark.parametrize("side", [(1, 2_000_000), (2_000_000, 1)])
def test_an_image_with_an_endless_side_is_refused(side: tuple[int, int]) -> None:
    with pytest.raises(BrokenImage, match="a side of more than 1,048,576 pixels"):
        decode(encoded(Image.new("L", side), "PNG"))


def folder_of(path: Path, sides: list[tuple[int, int]]) -> Path:
    path.mkdir()
    for number, side in enumerate(sides):
        (path / f"{number}.png").write_bytes(files(*side)["png rgba"])
    return path


def opened_for(folder: Path, tmp_path: Path, resize: str, interpolation: str) -> RecordStore:
    data = DataConfig(source="folder", path=str(folder), stores=str(tmp_path / "stores"), size=SIZE, resize=resize)
    return open_records(data, interpolation=interpolation)


@pytest.mark.parametrize(("resize", "interpolation"), [("crop", "bilinear"), ("squash", "bicubic"), ("crop", "bicubic")])
def test_a_run_that_imports_sees_what_stock_open_clip_sees(tmp_path: Path, resize: str, interpolation: str) -> None:
    folder, transform = folder_of(tmp_path / "pictures", SIDES), stock(resize, interpolation)
    store = opened_for(folder, tmp_path, resize, interpolation)
    assert (store.size is None) == ((resize, interpolation) != ("crop", "bicubic"))
    seen = store.images(np.arange(len(SIDES)), SIZE, resize, interpolation)
    ids = store.ids(np.arange(len(SIDES)))
    assert unlike(ids, seen, [transform(Image.open(folder / id)) for id in ids]) == []


def test_squares_that_were_made_in_another_way_are_refused(tmp_path: Path) -> None:
    for name, sides in (("fitting", [(SIZE, SIZE)] * 2), ("cropped", SIDES)):
        import_records(folder_of(tmp_path / name, sides), tmp_path / f"{name}-store", size=SIZE)

    def use(name: str, resize: str, interpolation: str = "bicubic") -> RecordStore:
        data = DataConfig(source="store", path=str(tmp_path / f"{name}-store"), size=SIZE, resize=resize)
        return open_records(data, interpolation=interpolation)

    assert use("cropped", "crop").resized and not use("fitting", "squash", "bilinear").resized
    for resize, interpolation in (("squash", "bicubic"), ("pad", "bicubic"), ("crop", "bilinear")):
        with pytest.raises(UserError, match="view-made-squares"):
            use("cropped", resize, interpolation)


@pytest.mark.parametrize("how", [("cut", "bicubic"), ("crop", "nearest"), ("pad", "")])
def test_unknown_words_are_said(how):
    with pytest.raises(ValueError, match="unknown .*expected 'bicubic' or 'bilinear'|unknown .*expected 'crop'"):
        square(Image.new("RGB", (9, 8)), 4, *how)
