"""The noisy sums since the last checkpoint, kept on disk so that a resumed run repeats them exactly on any machine.

They are what the mechanism released, so they are no more private than the parameters. They matter because a step must not be
released twice: both releases would hold the same sampled records, and together they would cost more than two steps.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def digest_of(vector: Tensor) -> str:
    """A hash of a flat vector's bits."""
    return hashlib.blake2b(vector.detach().cpu().numpy().data, digest_size=16).hexdigest()


class Releases:
    """Noisy sums by step.

    Args:
        folder: made when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, step: int, noisy: Tensor) -> None:
        """Keeps a release that has been paid for."""
        self._folder.mkdir(exist_ok=True)
        noisy.detach().cpu().numpy().tofile(self._path(step))

    def load(self, step: int, digest: str) -> Tensor | None:
        """The release of a step, if it is there undamaged."""
        if not self._path(step).is_file():
            return None
        noisy = torch.from_numpy(np.fromfile(self._path(step), dtype=np.float32))
        return noisy if digest_of(noisy) == digest else None

    def latest(self) -> int | None:
        """The last step that is kept."""
        return max((int(path.stem) for path in self._folder.glob("*.f32")), default=None)

    def forget(self, before: int) -> None:
        """Deletes the releases of steps that a checkpoint has taken in."""
        for path in self._folder.glob("*.f32"):
            if int(path.stem) < before:
                path.unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:08d}.f32"
