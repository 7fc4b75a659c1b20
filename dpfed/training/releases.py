"""The noisy sums since the last checkpoint, kept on disk so that a resumed run repeats them exactly on any machine.

They are what the mechanism released, so they are no more private than the parameters. They matter because a step must not be
released twice: both releases would hold the same sampled records, and together they would cost more than two steps. A noisy sum
is kept before it is charged, and charged before it is used; one that a crash left unpaid is paid for when the run resumes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfed.files.atomic import make_folder, write_atomically
from dpfed.privacy.ledger import Release
from dpfed.privacy.noise import digest_of


class Releases:
    """Noisy sums by step.

    Args:
        folder: made when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, release: Release, noisy: Tensor) -> None:
        """Keeps a noisy sum; when this returns, it is on disk."""
        make_folder(self._folder)
        content = noisy.detach().cpu().numpy().data.cast("B")
        write_atomically(self._folder / f"{release.step:08d}-{release.digest}.f32", content)

    def load(self, step: int, digest: str | None = None) -> Tensor | None:
        """The release of a step, if it is there undamaged.

        Args:
            step: training step.
            digest: of the one that was paid for; ``None``: any that is kept.
        """
        for path in self._folder.glob(f"{step:08d}-{digest or '*'}.f32"):
            noisy = torch.from_numpy(np.fromfile(path, dtype=np.float32))
            if digest_of(noisy) == path.stem.partition("-")[2]:
                return noisy
        return None

    def latest(self) -> int | None:
        """The last step that is kept."""
        return max(map(_step, self._folder.glob("*.f32")), default=None)

    def forget(self, before: int) -> None:
        """Deletes the releases of steps that a checkpoint has taken in."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if _step(path) < before:
                path.unlink()


def _step(path: Path) -> int:
    return int(path.name.removeprefix(".").partition("-")[0])  # a dot is in front of one whose writing a crash cut short
