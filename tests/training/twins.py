"""Two runs of one mechanism on unlike records, with the same noisy numbers: all that leaves them must be the same.

The first run's noise is kept; in the second, the noisy number takes the place of what would have come out. So whatever differs
afterwards knows the records by another way than through the noise.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.privacy.randomness import Randomness


@dataclass(frozen=True)
class Call:
    """One addition of noise.

    Attributes:
        purpose: ``noise`` on a sum, a site's ``share`` of it, or ``statistics``.
        step: training step.
        rank: who adds it.
        scale: its standard deviation.
        clean: what it is added to; whole numbers of steps, and `scale` is in steps then.
        noisy: what comes out.
    """

    purpose: str
    step: int
    rank: int
    scale: float
    clean: Tensor
    noisy: Tensor

    @property
    def key(self) -> tuple[str, int, int]:
        """What names the noise in a run."""
        return self.purpose, self.step, self.rank


class Noise:
    """Stands between a run and its noise.

    Args:
        patch: undone at the end of the test.
        before: called before each addition.
    """

    def __init__(self, patch: pytest.MonkeyPatch, before=lambda: None) -> None:
        self.calls: list[Call] = []
        self.before = before
        self._first: dict[tuple[str, int, int], Tensor] = {}
        real = Randomness.add_normal_

        def add_normal_(randomness, out, scale, purpose, step, rank=0, context=""):
            self.before()
            clean = out.clone()
            real(randomness, out, scale, purpose, step, rank, context)
            call = Call(purpose, step, rank, scale, clean, out.clone())
            self.calls.append(call)
            if self._first:
                out.copy_(self._first[call.key])

        patch.setattr(Randomness, "add_normal_", add_normal_)
        to_steps = Randomness.normal_steps

        def normal_steps(randomness, values, scale, purpose, step, rank=0, context=""):
            self.before()
            call = Call(
                purpose, step, rank, scale, values.clone(), to_steps(randomness, values, scale, purpose, step, rank, context)
            )
            self.calls.append(call)
            return self._first[call.key] if self._first else call.noisy

        patch.setattr(Randomness, "normal_steps", normal_steps)

    def repeat(self) -> list[Call]:
        """From now on the noisy numbers are those of the calls so far, which are returned."""
        calls, self.calls = self.calls, []
        self._first = {call.key: call.noisy for call in calls}
        assert len(self._first) == len(calls)  # nothing gets noise twice
        return calls


def stores(shapes: RecordStore, place: Path, count: int = 300) -> list[RecordStore]:
    """Two stores of `count` training records that have none in common, and the same held-out records."""
    train, test = shapes.split("train"), shapes.split("test")
    result = []
    for number in range(2):
        rows = train[number * count : (number + 1) * count]
        with StoreWriter(place / str(number) / "store", name="twin", kind="image-text", size=shapes.size) as writer:
            for split, part in (("train", rows), ("test", test)):
                images = shapes.images(part, shapes.size).permute(0, 2, 3, 1).numpy()
                for id_, image, captions in zip(shapes.ids(part), images, shapes.captions(part), strict=True):
                    writer.add(RecordInput(id_, np.ascontiguousarray(image), tuple(captions), split=split))
        result.append(RecordStore.open(place / str(number) / "store"))
    return result


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder; the fields of safetensors' headers, which the library writes in any order, are sorted."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".safetensors":
        return content
    length = struct.unpack("<Q", content[:8])[0]
    return json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True).encode() + content[8 + length :]
