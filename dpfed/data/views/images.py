"""Makes random views of images in batches; each view of each record has its own parameters.

The caller passes all random numbers in, as uniform numbers that it draws for each record from the secret key
(`dpfed.privacy.randomness`). A view is a function of its own image and uniform numbers alone: no statistic is taken over the
batch. An operation that the configuration makes trivial (probability 0, or a range of one value that changes nothing) uses no
uniform numbers and no time.

Order and formulas follow SimCLR (Chen et al. 2020, appendix A) as torchvision implements them, with three differences that
batching requires: the colour operations have one fixed order, hue is rotated in YIQ space rather than in HSV, and a crop that
is too wide or too high is made as wide or high as the image rather than drawn again.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import ClassVar

import torch
import torch.nn.functional as F

from dpfed.data.options import ViewsConfig
from dpfed.data.transfer import constant
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import Notice

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R BT.601, with torchvision's digits
_RGB_TO_YIQ = ((0.299, 0.587, 0.114), (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))
_BLUR_REFERENCE = 224  # the image side, pixels, that blur_sigma refers to
_CHUNK_FLOATS = 1 << 20  # values processed together on a CPU: bounds the workspace and keeps most passes in the cache


class ImageViews:
    """Turns images into normalised random views.

    Args:
        config: Probabilities and ranges.
        preprocessing: Mean and standard deviation that the model expects; ``None``: 0.5 and 0.5.

    Attributes:
        columns: Number of uniform numbers that a view uses.
    """

    has_kernels: ClassVar[bool | None] = None  # whether a GPU runs the kernels of `dpfed.data.views.fused`; None: not known yet

    def __init__(self, config: ViewsConfig, preprocessing: Preprocessing | None = None) -> None:
        self.config = config
        expected = preprocessing or Preprocessing()
        self._expected = expected
        self._crop = config.crop_scale != (1.0, 1.0) or config.crop_ratio != (1.0, 1.0)
        ranges = {name: getattr(config, name) for name in ("brightness", "contrast", "saturation", "hue")}
        self._jitter = {name: strength for name, strength in ranges.items() if config.jitter > 0 and strength > 0}
        self._names = (
            ["area", "ratio", "left", "top"] * self._crop
            + ["flip"] * (config.flip > 0)
            + ["jitter"] * bool(self._jitter)
            + list(self._jitter)
            + ["grayscale"] * (config.grayscale > 0)
            + ["blur", "sigma"] * (config.blur > 0)
        )
        self.columns = len(self._names)

    def __call__(self, images: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """Makes V views of each image, on the device of the inputs.

        Args:
            images: Images, ``(n, 3, H, W)`` uint8.
            uniforms: Uniform numbers, ``(n, V, columns)`` float32 in [0, 1].

        Returns:
            The normalised views, ``(n, V, 3, H, W)`` float32. Without augmentation all views of an image share memory, so
            callers must not write to them.

        Raises:
            ValueError: If `images` or `uniforms` has another shape, or `images` another type.
        """
        _check(images)
        if uniforms.dim() != 3 or uniforms.shape[0] != len(images) or uniforms.shape[2] != self.columns:
            expected = f"({len(images)}, V, {self.columns})"
            raise ValueError(f"uniforms must have shape {expected}, got {tuple(uniforms.shape)}")
        views = uniforms.shape[1]
        if not self.columns:
            return self.plain(images)[:, None].expand(-1, views, -1, -1, -1)
        if _on_gpu(images) and (made := self._fused(images, uniforms.float().flatten(0, 1), views)) is not None:
            return made.unflatten(0, (len(images), views))
        result = torch.empty(len(images), views, *images.shape[1:], device=images.device)
        step = len(images) or 1
        if images.device.type == "cpu":
            step = max(1, _CHUNK_FLOATS // max(1, views * images[:1].numel()))
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            self._fill(result[part].flatten(0, 1), images[part], uniforms[part].float().flatten(0, 1), views)
        return result

    def plain(self, images: torch.Tensor) -> torch.Tensor:
        """Normalises images without augmentation.

        Args:
            images: Images, ``(n, 3, H, W)`` uint8.

        Returns:
            Images ``(n, 3, H, W)`` float32.

        Raises:
            ValueError: If `images` has another shape or type.
        """
        _check(images)
        return self._normalise_(images.to(torch.float32).div_(255))

    def _fused(self, images: torch.Tensor, uniforms: torch.Tensor, views: int) -> torch.Tensor | None:
        """Makes views by the GPU kernels of `dpfed.data.views.fused`, and returns them, ``(n V, 3, H, W)``.

        ``None``: these kernels do not run on this GPU. The first time, there is a warning.

        Args:
            images: Images, ``(n, 3, H, W)`` uint8.
            uniforms: Uniform numbers, ``(n V, columns)`` float32.
            views: V, number of views of each image.
        """
        if ImageViews.has_kernels is False:
            return None
        draw, height, width = dict(zip(self._names, uniforms.unbind(1), strict=True)), *images.shape[2:]
        one = torch.ones(len(uniforms), device=images.device)
        box = self._boxes(draw, height, width) if self._crop else (0 * one, 0 * one, one, one)
        flip = (draw["flip"] < self.config.flip).float() if "flip" in draw else 0 * one
        light = [self._factor(name, draw) if name in draw else one for name in ("brightness", "contrast")]
        chroma = self._chroma(draw, one)
        matrix = torch.eye(3, device=one.device).expand(len(one), 3, 3) if chroma is None else chroma_matrix(*chroma)
        parameters = torch.cat([torch.stack([*box, flip, *light], dim=1), matrix.flatten(1)], dim=1)
        scales = constant((*self._expected.mean, *self._expected.std), one.device)
        try:
            from dpfed.data.views.fused import views_of

            made = views_of(images, parameters, scales, views, *self._blur(draw, height, width))
        except Exception as error:  # Triton may be absent, or have no compiler, or not know the GPU
            if ImageViews.has_kernels or isinstance(error, torch.OutOfMemoryError):
                raise
            ImageViews.has_kernels = False
            reason = str(error).partition("\n")[0] or type(error).__name__
            text = "views are made by single torch operations, which takes several times as long"
            warnings.warn(f"Triton's kernels do not run on this GPU ({reason}): {text}.", Notice, stacklevel=3)
            return None
        ImageViews.has_kernels = True
        return made

    def _fill(self, out: torch.Tensor, images: torch.Tensor, uniforms: torch.Tensor, views: int) -> None:
        """Makes views by torch's operations.

        Args:
            out: Output, ``(n V, 3, H, W)`` float32.
            images: Images, ``(n, 3, H, W)`` uint8.
            uniforms: Uniform numbers, ``(n V, columns)`` float32.
            views: V, number of views of each image.
        """
        draw = dict(zip(self._names, uniforms.unbind(1), strict=True))
        x = images.to(torch.float32).div_(255).repeat_interleave(views, 0)
        flip = draw["flip"] < self.config.flip if "flip" in draw else None
        if self._crop:
            left, top, width, height = self._boxes(draw, images.shape[2], images.shape[3])
            x = resized_crop(x, left, top, width, height, flip)
        elif flip is not None:
            x = torch.where(flip[:, None, None, None], x.flip(3), x)
        x = self._colour(x, draw)
        sigmas, radius = self._blur(draw, *images.shape[2:])
        if sigmas is not None:
            x = gaussian_blur(x, sigmas, radius)
        out.copy_(x)
        self._normalise_(out)

    def _normalise_(self, x: torch.Tensor) -> torch.Tensor:
        mean, std = (constant(of, x.device)[:, None, None] for of in (self._expected.mean, self._expected.std))
        return x.sub_(mean).div_(std)

    def _boxes(self, draw: dict[str, torch.Tensor], height: int, width: int) -> tuple[torch.Tensor, ...]:
        """Returns left, top, width and height of the boxes of m crops, each ``(m,)``, as fractions of the image.

        A box that is too wide or too high is made as wide or high as the image. (torchvision draws again, up to ten times.)

        Args:
            draw: Uniform numbers for each parameter, ``(m,)``.
            height: Height of the images, pixels.
            width: Width of the images, pixels.
        """
        (small, large), (narrow, wide) = self.config.crop_scale, map(math.log, self.config.crop_ratio)
        area = small + draw["area"] * (large - small)
        stretch = torch.exp(narrow + draw["ratio"] * (wide - narrow)) * (height / width)
        box_width, box_height = (area * stretch).sqrt().clamp(max=1), (area / stretch).sqrt().clamp(max=1)
        return draw["left"] * (1 - box_width), draw["top"] * (1 - box_height), box_width, box_height

    def _blur(self, draw: dict[str, torch.Tensor], height: int, width: int) -> tuple[torch.Tensor | None, int]:
        """Returns the standard deviation of each view's blur, ``(m,)``, and the half width of all blur kernels, both in pixels.

        The standard deviation is 0 for a view that is not blurred. If blur is off for all views: ``None`` and 0.
        """
        if "blur" not in draw:
            return None, 0
        low, high = (sigma * min(height, width) / _BLUR_REFERENCE for sigma in self.config.blur_sigma)
        sigma = low + draw["sigma"] * (high - low)
        return torch.where(draw["blur"] < self.config.blur, sigma, 0.0), math.ceil(3 * high)

    def _factor(self, name: str, draw: dict[str, torch.Tensor]) -> torch.Tensor:
        strength = self._jitter[name]
        return torch.where(draw["jitter"] < self.config.jitter, 1 + strength * (2 * draw[name] - 1), 1.0)

    def _chroma(self, draw: dict[str, torch.Tensor], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the saturation and the turns of each view's colours, each ``(m,)``, for `adjust_chroma`.

        ``None``: no view's colours change.
        """
        if not draw.keys() & {"saturation", "hue", "grayscale"}:
            return None
        saturation = self._factor("saturation", draw) if "saturation" in draw else torch.ones_like(like)
        turns = self._factor("hue", draw) - 1 if "hue" in draw else torch.zeros_like(saturation)
        if "grayscale" in draw:
            saturation = torch.where(draw["grayscale"] < self.config.grayscale, 0.0, saturation)
        return saturation, turns

    def _colour(self, x: torch.Tensor, draw: dict[str, torch.Tensor]) -> torch.Tensor:
        if "brightness" in draw:
            x = (x * self._factor("brightness", draw)[:, None, None, None]).clamp_(0, 1)
        if "contrast" in draw:
            x = adjust_contrast(x, self._factor("contrast", draw))
        chroma = self._chroma(draw, x[:, 0, 0, 0])
        return x if chroma is None else adjust_chroma(x, *chroma)


def resized_crop(
    x: torch.Tensor,
    left: torch.Tensor,
    top: torch.Tensor,
    width: torch.Tensor,
    height: torch.Tensor,
    flip: torch.Tensor | None = None,
) -> torch.Tensor:
    """Crops images to boxes, resizes the crops to the size of the images (bilinear), and flips some of them.

    A crop is never larger than its image, so resizing only enlarges and needs no anti-aliasing.

    Args:
        x: Images, ``(m, 3, H, W)`` float32.
        left: Left side of each box, ``(m,)``. All four numbers of a box are fractions of the image.
        top: Upper side of each box, ``(m,)``.
        width: Width of each box, ``(m,)``.
        height: Height of each box, ``(m,)``.
        flip: Whether each crop is flipped from left to right, ``(m,)`` bool; ``None``: none is.
    """
    columns = _grid(left, width, x.shape[3])
    if flip is not None:
        columns = torch.where(flip[:, None], columns.flip(1), columns)
    rows = _grid(top, height, x.shape[2])
    shape = (len(x), x.shape[2], x.shape[3])
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _grid(start: torch.Tensor, length: torch.Tensor, pixels: int) -> torch.Tensor:
    """Returns the coordinates at which m images are sampled along one axis, ``(m, pixels)`` in [-1, 1].

    The coordinates stay at least half a source pixel inside the box, so that no pixel from outside the box is blended in.

    Args:
        start: Start of each image's box, ``(m,)``, as a fraction of the image.
        length: Length of each box, ``(m,)``, as a fraction of the image.
        pixels: Number of pixels along the axis.
    """
    centres = (torch.arange(pixels, device=start.device) + 0.5) / pixels
    inset = torch.minimum(length / 2, torch.full_like(length, 0.5 / pixels))
    positions = start[:, None] + length[:, None] * centres
    low, high = start + inset, start + length - inset
    return torch.minimum(torch.maximum(positions, low[:, None]), high[:, None]) * 2 - 1


def adjust_contrast(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiplies the difference between each image and its own mean luma by a factor, and limits the result to 0 .. 1.

    Args:
        x: Images, ``(m, 3, H, W)`` in [0, 1].
        factor: Factor for each image, ``(m,)``: above 1, the contrast grows.
    """
    # Not a matrix product over all images: its rounding of one image would depend on the image's position in the batch.
    mean = sum(share * channel for share, channel in zip(_LUMA, x.mean((2, 3)).unbind(1), strict=True))
    return torch.addcmul(((1 - factor) * mean)[:, None, None, None], x, factor[:, None, None, None]).clamp_(0, 1)


def adjust_chroma(x: torch.Tensor, saturation: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Scales and rotates the chroma of images, keeps their luma, and then limits the colours to 0 .. 1.

    Scaling and rotation act on the chroma plane only, where they commute, so one 3x3 matrix for each image does both.

    Args:
        x: Images, ``(m, 3, H, W)`` in [0, 1].
        saturation: Factor of each image's chroma, ``(m,)``; 0: greyscale.
        turns: Rotation of each image's chroma, ``(m,)``, as a fraction of a full circle.
    """
    return torch.bmm(chroma_matrix(saturation, turns), x.flatten(2)).view_as(x).clamp_(0, 1)


def chroma_matrix(saturation: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Returns the matrices by which `adjust_chroma` multiplies the colours of each image, ``(m, 3, 3)``."""
    grey, turn = (constant(values, saturation.device).view(3, 3) for values in _chroma_constants())
    angle = 2 * math.pi * turns
    along, across = (saturation * angle.cos())[:, None, None], (saturation * angle.sin())[:, None, None]
    return grey + along * (torch.eye(3, device=saturation.device) - grey) + across * turn


@functools.cache
def _chroma_constants() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the entries of two 3x3 matrices for RGB colours, row by row.

    The first matrix makes colours grey. The second turns hues by a quarter of a circle, and removes the grey part of colours.
    """
    to_yiq = torch.tensor(_RGB_TO_YIQ, dtype=torch.float64)
    quarter = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)  # red moves towards yellow, as in HSV
    return 3 * _LUMA, tuple((torch.linalg.inv(to_yiq) @ quarter @ to_yiq).flatten().tolist())


def gaussian_blur(x: torch.Tensor, sigma: torch.Tensor, radius: int) -> torch.Tensor:
    """Blurs images by Gaussian kernels, first along rows and then along columns. Borders are reflected.

    Both passes are products with a banded matrix for each image. On a CPU, this is several times as fast as adding up shifted
    images.

    Args:
        x: Images, ``(m, 3, H, W)``.
        sigma: Standard deviation of each image's kernel, ``(m,)``, pixels; 0 leaves an image as it is.
        radius: Half width of all kernels, pixels; at most the smaller side of an image less 1 is used.
    """
    radius = min(radius, x.shape[2] - 1, x.shape[3] - 1)
    offsets = torch.arange(-radius, radius + 1, device=x.device)
    kernel = torch.exp(-0.5 * (offsets / sigma.clamp(min=1e-3)[:, None]) ** 2)
    kernel = kernel / kernel.sum(1, keepdim=True)
    x = (x.flatten(1, 2) @ _bands(kernel, x.shape[3])).view_as(x)
    return _bands(kernel, x.shape[2]).transpose(1, 2)[:, None] @ x


def _on_gpu(images: torch.Tensor) -> bool:
    return images.device.type == "cuda"


def _bands(kernel: torch.Tensor, size: int) -> torch.Tensor:
    """Returns the matrix of each image's convolution along one axis, ``(m, source pixel, target pixel)``.

    Args:
        kernel: Kernel of each image, ``(m, 2 radius + 1)``.
        size: Number of pixels along the axis.
    """
    taps = kernel.shape[1]
    identity = torch.eye(size, device=kernel.device)[None]
    shifted = F.pad(identity, (taps // 2, taps // 2), mode="reflect")[0].unfold(1, size, 1)  # source, tap, target
    taken = shifted.transpose(0, 1).reshape(taps, -1)
    # One product per image: in a product over all images, the rounding would depend on an image's position in the batch.
    return torch.bmm(kernel[:, None], taken.expand(len(kernel), -1, -1)).view(-1, size, size)


def _check(images: torch.Tensor) -> None:
    if images.dim() != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 (n, 3, H, W), got {images.dtype} {tuple(images.shape)}")
