"""The noisy sums since the last checkpoint, kept on disk so that a resumed run repeats them exactly on any machine.

They are what the mechanism released, so they are no more private than the parameters. They matter because a step must not be
released twice: both releases would hold the same sampled records, and together they would cost more than two steps. A noisy sum
is kept before it is charged; one that a crash left unpaid is charged when the run resumes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfed.files.atomic import make_folder, write_atomically
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Release

_NAME = re.compile(r"(?P<step>\d{8,})-(?P<digest>[0-9a-f]+)\.f32")


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
        name = f"{release.step:08d}-{release.digest}.f32"
        write_atomically(self._folder / name, noisy.detach().cpu().numpy().data.cast("B"))

    def load(self, step: int, blocks: Blocks, digest: str | None = None) -> Tensor | None:
        """The release of a step, if it is there whole and undamaged.

        Args:
            step: training step.
            blocks: of the sum: how its digest is made.
            digest: of the one that was charged; ``None``: any that is kept.
        """
        for match in self._named(step):
            if digest in (None, match["digest"]):
                noisy = torch.from_numpy(np.fromfile(self._folder / match.string, dtype=np.float32))
                if noisy.numel() == blocks.size and match["digest"] == blocks.digest(noisy):
                    return noisy
        return None

    def latest(self) -> int | None:
        """The last step of which anything is kept."""
        return max((int(match["step"]) for match in self._named()), default=None)

    def forget(self, before: int) -> None:
        """Deletes the releases of steps that a checkpoint has taken in."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            # A dot is in front of one whose writing a crash cut short.
            if int(path.name.removeprefix(".").partition("-")[0]) < before:
                path.unlink()

    def _named(self, step: int | None = None) -> Iterator[re.Match[str]]:
        """The files, by name; of one step."""
        for path in sorted(self._folder.glob("*.f32")):
            match = _NAME.fullmatch(path.name)
            if match is not None and (step is None or int(match["step"]) == step):
                yield match
