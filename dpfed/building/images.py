"""Reads the size and shape of the images from a configuration, without importing torch."""

from __future__ import annotations

from dpfed.config import Config


def image_size(config: Config) -> int:
    """Returns the side of the images, pixels.

    Args:
        config: Configuration whose size is resolved (`dpfed.runs.resolution.resolve_defaults`).

    Raises:
        ValueError: If the configuration has no size.
    """
    if config.data.size is None:
        raise ValueError("the configuration has no data.size: call dpfed.runs.resolution.resolve_defaults first")
    return config.data.size


def image_shape(config: Config) -> tuple[int, int, int]:
    """Returns the shape (C, H, W) of a view, from a configuration whose defaults are resolved.

    Raises:
        ValueError: If the configuration has neither a shape of the views nor a size of the images.
    """
    if config.views.shape is not None:
        channels, height, width = config.views.shape
        return channels, height, width
    return 3, image_size(config), image_size(config)
