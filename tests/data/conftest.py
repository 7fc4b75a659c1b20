from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


class Pictures:
    """Random images, and the same as files."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def array(self, height: int = 12, width: int = 12, channels: int = 3) -> np.ndarray:
        shape = (height, width, channels) if channels == 3 else (height, width)
        return self._random.integers(0, 256, shape, dtype=np.uint8)

    @staticmethod
    def encoded(array: np.ndarray, format: str = "PNG") -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, format=format)
        return buffer.getvalue()

    def png(self, height: int = 12, width: int = 12) -> bytes:
        return self.encoded(self.array(height, width))

    def jpeg(self, height: int = 12, width: int = 12) -> bytes:
        return self.encoded(self.array(height, width), "JPEG")

    def file(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.png() if path.suffix == ".png" else self.jpeg())
        return path


@pytest.fixture
def pictures() -> Pictures:
    return Pictures()
