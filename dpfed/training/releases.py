"""Keeps noisy sums on disk, so that a resumed run can repeat, on any machine, the steps since one of the last checkpoints.

Noisy sums are the mechanism's output, so they are no more private than the parameters. They are kept because a step must not be
released twice: both releases would depend on the same sampled records, so together they would cost more than two steps. A noisy
sum is saved before it is charged. A sum that a crash left uncharged is charged when the run resumes.
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
_OURS = re.compile(r"\.?(?P<step>\d{8,})-[0-9a-f]+\.f32(\.partial)?")  # with a leading dot: a crash interrupted its writing


class Releases:
    """A folder of noisy sums, by step.

    Args:
        folder: Folder of the files; it is created when the first sum is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, release: Release, noisy: Tensor) -> None:
        """Saves a noisy sum; when this method returns, the sum is on disk."""
        make_folder(self._folder)
        name = f"{release.step:08d}-{release.digest}.f32"
        write_atomically(self._folder / name, noisy.detach().cpu().numpy().data.cast("B"))

    def load(self, step: int, blocks: Blocks, digest: str | None = None) -> Tensor | None:
        """Returns the noisy sum of a step, float32; ``None`` if no complete and undamaged sum is saved.

        Args:
            step: Training step.
            blocks: Division of the sum into blocks, from whose hashes the sum's digest is made.
            digest: Digest of the release that was charged; ``None``: any saved release of the step.
        """
        for match in self._named(step):
            if digest in (None, match["digest"]):
                noisy = torch.from_numpy(np.fromfile(self._folder / match.string, dtype=np.float32))
                if noisy.numel() == blocks.size and match["digest"] == blocks.digest(noisy):
                    return noisy
        return None

    def latest(self) -> int | None:
        """Returns the last step of which a sum is saved; ``None`` if there is none."""
        return max((int(match["step"]) for match in self._named()), default=None)

    def forget(self, before: int) -> None:
        """Deletes the sums of all steps before step `before`; a checkpoint must already include their effect."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            match = _OURS.fullmatch(path.name)  # file systems leave files of their own, such as .nfs0001 and .DS_Store
            if match is not None and int(match["step"]) < before:
                path.unlink()

    def _named(self, step: int | None = None) -> Iterator[re.Match[str]]:
        """Yields the regular-expression matches of the saved files' names, sorted; with `step`, only those of that step."""
        for path in sorted(self._folder.glob("*.f32")):
            match = _NAME.fullmatch(path.name)
            if match is not None and (step is None or int(match["step"]) == step):
                yield match
