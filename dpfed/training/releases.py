"""The noisy sums since the last checkpoint, kept on disk so that a resumed run repeats them exactly on any machine.

They are what the mechanism released, so they are no more private than the parameters. They matter because a step must not be
released twice: both releases would hold the same sampled records, and together they would cost more than two steps. A noisy sum
is kept before it is charged, and charged before it is used; one that a crash left unpaid is paid for when the run resumes.

Where several processes hold a sum, each keeps its own blocks as a part. Parts of one attempt share a tag, and only those are
ever put together: another attempt at a step may have added the same records up in another way, and a sum that is half of one
and half of the other could move by more than the sensitivity. A release that lacks a part was neither paid for nor used.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfed.files.atomic import make_folder, write_atomically
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Release
from dpfed.privacy.noise import digest_of

_WHOLE = re.compile(r"(?P<step>\d{8,})-(?P<digest>[0-9a-f]+)\.f32")
_PART = re.compile(
    r"(?P<step>\d{8,})-(?P<tag>[0-9a-f]+)\.(?P<first>\d+)-(?P<end>\d+)of(?P<count>\d+)x(?P<length>\d+)\.(?P<digest>[0-9a-f]+)\.f32"
)


@dataclass(frozen=True)
class Part:
    """Some blocks of a noisy sum, as one process keeps them.

    Attributes:
        step: training step.
        tag: of the attempt at the step: hexadecimal.
        first: block.
        end: the block behind the last one.
        blocks: how the sum is cut.
    """

    step: int
    tag: str
    first: int
    end: int
    blocks: Blocks

    def name(self, digest: str) -> str:
        """Of the file that keeps it: it ends with the digest of what is in it."""
        cut = f"{self.first}-{self.end}of{self.blocks.count}x{self.blocks.length}"
        return f"{self.step:08d}-{self.tag}.{cut}.{digest}.f32"


class Releases:
    """Noisy sums by step.

    Args:
        folder: made when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, release: Release, noisy: Tensor) -> None:
        """Keeps a noisy sum of one block; when this returns, it is on disk."""
        self._write(f"{release.step:08d}-{release.digest}.f32", noisy)

    def save_part(self, part: Part, noisy: Tensor, digests: Sequence[str]) -> None:
        """Keeps some blocks of a noisy sum; when this returns, they are on disk.

        Args:
            part: which.
            noisy: their numbers; of no blocks, nothing is kept.
            digests: of each block, see `Blocks.digests`.
        """
        if digests:
            self._write(part.name(_digest_of_part(digests)), noisy)

    def load(self, step: int, digest: str | None = None) -> Tensor | None:
        """The release of a step, if it is there whole and undamaged.

        Args:
            step: training step.
            digest: of the one that was paid for; ``None``: any that is kept.
        """
        for match in self._named(_WHOLE, step):
            if digest in (None, match["digest"]):
                noisy = self._read(match.string)
                if match["digest"] == digest_of(noisy):
                    return noisy
        attempts: defaultdict[tuple[str, ...], list[re.Match[str]]] = defaultdict(list)
        for match in self._named(_PART, step):
            attempts[match["tag"], match["count"], match["length"]].append(match)
        for parts in attempts.values():
            joined = self._joined(parts)
            if joined is not None and digest in (None, joined[1]):
                return joined[0]
        return None

    def latest(self) -> int | None:
        """The last step of which anything is kept."""
        return max((int(match["step"]) for kind in (_WHOLE, _PART) for match in self._named(kind)), default=None)

    def forget(self, before: int) -> None:
        """Deletes the releases of steps that a checkpoint has taken in."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if _step(path) < before:
                path.unlink()

    def _write(self, name: str, noisy: Tensor) -> None:
        make_folder(self._folder)
        write_atomically(self._folder / name, noisy.detach().cpu().numpy().data.cast("B"))

    def _read(self, name: str) -> Tensor:
        return torch.from_numpy(np.fromfile(self._folder / name, dtype=np.float32))

    def _named(self, kind: re.Pattern[str], step: int | None = None) -> Iterator[re.Match[str]]:
        """The files of a kind, by name; of one step."""
        for path in sorted(self._folder.glob("*.f32")):
            match = kind.fullmatch(path.name)
            if match is not None and step in (None, int(match["step"])):
                yield match

    def _joined(self, parts: list[re.Match[str]]) -> tuple[Tensor, str] | None:
        """The sum of one attempt, and its digest; ``None`` if a part is missing or damaged."""
        parts = sorted(parts, key=lambda one: int(one["first"]))
        edges = [0, *(int(one["end"]) for one in parts)]
        if edges[-1] != int(parts[0]["count"]) or edges[:-1] != [int(one["first"]) for one in parts]:
            return None
        pieces = [self._read(one.string) for one in parts]
        length = int(parts[0]["length"])
        blocks = Blocks(sum(map(len, pieces)), length)
        digests = [blocks.digests(piece) for piece in pieces]
        for one, its in zip(parts, digests, strict=True):
            if _digest_of_part(its) != one["digest"] or len(its) != int(one["end"]) - int(one["first"]):
                return None
        return torch.cat(pieces), blocks.joined([digest for its in digests for digest in its])


def _digest_of_part(digests: Sequence[str]) -> str:
    """That a part is what was written; what is paid for is the digest over all blocks."""
    return hashlib.sha256("/".join(digests).encode()).hexdigest()[:32]


def _step(path: Path) -> int:
    return int(path.name.removeprefix(".").partition("-")[0])  # a dot is in front of one whose writing a crash cut short
