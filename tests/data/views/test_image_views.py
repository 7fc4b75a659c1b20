"""Random views: each record by itself, and each operation as torchvision computes it."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as oracle

from dpfed.config import ViewsConfig
from dpfed.data.views.images import ImageViews, adjust_chroma
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import Notice

SIMCLR = ViewsConfig(crop_scale=(0.2, 1.0), crop_ratio=(3 / 4, 4 / 3), flip=0.5, jitter=0.8, grayscale=0.2, blur=0.5)
JITTER_OFF = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def some_images(count: int = 6, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def some_uniforms(views: ImageViews, count: int = 6, per_record: int = 2) -> torch.Tensor:
    return torch.rand(count, per_record, views.columns, generator=torch.Generator().manual_seed(2))


def unit(views: torch.Tensor) -> torch.Tensor:
    return views / 2 + 0.5


def test_shape_range_and_columns():
    views = ImageViews(SIMCLR)
    assert views.columns == 13
    result = views(some_images(), some_uniforms(views, per_record=3))
    assert result.shape == (6, 3, 3, 32, 32) and result.dtype == torch.float32
    assert result.min() >= -1 and result.max() <= 1
    assert not torch.equal(result[:, 0], result[:, 1])


def test_plain_is_the_normalised_image():
    images = some_images()
    assert torch.allclose(ImageViews(SIMCLR).plain(images), (images / 255.0 - 0.5) / 0.5, atol=1e-6)


@pytest.mark.parametrize("size", [32, 40])
def test_a_record_changes_only_its_own_rows(size):
    views = ImageViews(SIMCLR)
    images, uniforms = some_images(size=size), some_uniforms(views)
    before = views(images, uniforms)
    images[2], uniforms[2] = 255 - images[2], 1 - uniforms[2]
    after = views(images, uniforms)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_a_record_has_the_same_views_wherever_it_stands(at_once):
    """Otherwise one more record would change how others are rounded: some processors round a product's last rows apart."""
    views = ImageViews(SIMCLR)
    images, uniforms = some_images(), some_uniforms(views)
    pieces = [views(images[i : i + at_once], uniforms[i : i + at_once]) for i in range(0, 6, at_once)]
    assert torch.equal(views(images, uniforms), torch.cat(pieces))


def test_cutting_into_chunks_changes_nothing(monkeypatch):
    views = ImageViews(SIMCLR)
    images, uniforms = some_images(), some_uniforms(views)
    whole = views(images, uniforms)
    monkeypatch.setattr("dpfed.data.views.images._CHUNK_FLOATS", 2 * 2 * images[0].numel())
    assert torch.equal(whole, views(images, uniforms))


def test_flip():
    views = ImageViews(ViewsConfig(flip=0.5))
    uniforms = some_uniforms(views)
    result = unit(views(some_images(), uniforms))
    for record, image in enumerate(some_images() / 255.0):
        for view in range(2):
            expected = oracle.horizontal_flip(image) if uniforms[record, view, 0] < 0.5 else image
            assert torch.allclose(result[record, view], expected, atol=1e-6)


@pytest.mark.parametrize("flipped", [False, True])
def test_crop(flipped):
    """A quarter of the area; with u = k/16 the 16-pixel box starts at whole pixel k, as torchvision's boxes do."""
    views = ImageViews(ViewsConfig(crop_scale=(0.25, 0.25), flip=float(flipped)))
    left, top = torch.arange(6) * 3, torch.arange(6) + 7
    uniforms = torch.zeros(6, 1, views.columns)
    uniforms[:, 0, 2], uniforms[:, 0, 3] = left / 16, top / 16
    result = unit(views(some_images(), uniforms))
    for record, image in enumerate(some_images() / 255.0):
        expected = oracle.resized_crop(image, int(top[record]), int(left[record]), 16, 16, [32, 32])
        expected = oracle.horizontal_flip(expected) if flipped else expected
        assert torch.allclose(result[record, 0], expected, atol=1e-5)


def test_boxes_lie_in_the_image_with_the_area_and_ratio_asked():
    views = ImageViews(ViewsConfig(crop_scale=(0.2, 0.5), crop_ratio=(3 / 4, 4 / 3)))
    draw = dict(zip(["area", "ratio", "left", "top"], torch.rand(4, 4000), strict=True))
    left, top, width, height = views._boxes(draw, 32, 32)
    assert left.min() >= 0 and top.min() >= 0
    assert (left + width).max() <= 1 + 1e-6 and (top + height).max() <= 1 + 1e-6
    area, ratio = width * height, width / height
    assert 0.2 - 1e-4 <= area.min() and area.max() <= 0.5 + 1e-4
    assert 3 / 4 - 1e-3 <= ratio.min() and ratio.max() <= 4 / 3 + 1e-3
    assert area.mean() == pytest.approx(0.35, abs=0.01)
    assert ratio.log().mean() == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_jitter(name):
    views = ImageViews(ViewsConfig(jitter=0.5, **(JITTER_OFF | {name: 0.8})))
    uniforms = some_uniforms(views)
    result = unit(views(some_images(), uniforms))
    adjust = getattr(oracle, f"adjust_{name}")
    for record, image in enumerate(some_images() / 255.0):
        for view in range(2):
            chosen, drawn = uniforms[record, view].tolist()
            expected = adjust(image, 1 + 0.8 * (2 * drawn - 1)) if chosen < 0.5 else image
            assert torch.allclose(result[record, view], expected, atol=3e-4)  # torchvision's luma digits add up to 0.9999


def test_grayscale():
    result = unit(ImageViews(ViewsConfig(grayscale=1.0))(some_images(), torch.zeros(6, 1, 1)))
    assert torch.allclose(result[:, 0], oracle.rgb_to_grayscale(some_images() / 255.0, 3), atol=1e-5)


def test_hue_turns_the_way_torchvision_turns_it():
    """YIQ and HSV differ in detail, but a third of a turn takes red to green, and green to blue, in both."""
    primaries = torch.eye(3)[:, :, None, None] * 0.5
    turned = adjust_chroma(primaries, torch.ones(3), torch.full((3,), 1 / 3))
    expected = oracle.adjust_hue(primaries, 1 / 3)
    assert torch.equal(turned.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("size", [32, 96])
def test_blur(size):
    views = ImageViews(ViewsConfig(blur=0.5, blur_sigma=(0.5, 4.0)))
    uniforms = some_uniforms(views)
    result = unit(views(some_images(size=size), uniforms))
    radius = int(np.ceil(3 * 4.0 * size / 224))
    for record, image in enumerate(some_images(size=size) / 255.0):
        for view in range(2):
            chosen, drawn = uniforms[record, view].tolist()
            sigma = (0.5 + 3.5 * drawn) * size / 224
            blurred = oracle.gaussian_blur(image, [2 * radius + 1] * 2, [sigma, sigma])
            assert torch.allclose(result[record, view], blurred if chosen < 0.5 else image, atol=1e-5)


KINDS = {
    "all": SIMCLR,
    "colours": ViewsConfig(flip=0.5, jitter=1.0),
    "crops": ViewsConfig(crop_scale=(0.1, 0.3), flip=0.5, jitter=0.0),
    "blur": ViewsConfig(blur=1.0),
}


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The kernels of a GPU make the views, in Triton's interpreter."""
    pytest.importorskip("triton")
    monkeypatch.setattr("dpfed.data.views.images._on_gpu", lambda images: True)
    monkeypatch.setattr(ImageViews, "has_kernels", None)


@pytest.mark.long
@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("size", [8, 33])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_gpus_kernels_make_the_same_views(config, size, monkeypatch):
    views, images = ImageViews(config, Preprocessing((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))), some_images(3, size)
    uniforms = some_uniforms(views, 3)
    made = views(images, uniforms)
    assert ImageViews.has_kernels
    monkeypatch.setattr("dpfed.data.views.images._on_gpu", lambda images: False)
    torch.testing.assert_close(made, views(images, uniforms), rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.usefixtures("on_a_gpu")
def test_a_gpus_kernels_make_views_of_their_record_alone():
    views = ImageViews(SIMCLR)
    images, uniforms = some_images(3, 12), some_uniforms(views, 3)
    alone = views(images[:1], uniforms[:1])[0]
    assert torch.equal(views(images.flip(0), uniforms.flip(0))[2], alone)


@pytest.mark.usefixtures("on_a_gpu")
def test_where_kernels_do_not_run_views_are_made_without_them(monkeypatch):
    import dpfed.data.views.fused

    def failing(*_):
        raise RuntimeError("Failed to find C compiler.\nmore")

    monkeypatch.setattr(dpfed.data.views.fused, "views_of", failing)
    views, images = ImageViews(SIMCLR), some_images()
    with pytest.warns(Notice, match=r"Triton's kernels do not run on this GPU \(Failed to find C compiler.\)"):
        made = views(images, some_uniforms(views))
    monkeypatch.setattr("dpfed.data.views.images._on_gpu", lambda images: False)
    assert torch.equal(made, views(images, some_uniforms(views)))
