"""Canaries: generated records, and a model under which each of them moves the sum as far as a record can.

An audit of the mechanism needs no private record and no real model. Its records are generated pictures of 8 x 8 pixels in which
a number is written. Its model reads the numbers and answers with a gradient that the auditor chose, long enough to be clipped:
a Dirac canary (Nasr et al. 2023; Andrew et al. 2024). All the rest is the run's own: draws, groups, views, engines, clipping,
noise, ledger, optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter

SIDE = 8  # pixels
_DIGITS = 24  # binary, of a record's number
_WIDTH = 16  # dimensions of an embedding
_FILLER, _CANARY = 1e3, 1e6  # lengths of gradients before clipping: a canary prevails over the rest of its group

Arrangement = Literal["group", "own", "one"]


def write_public(path: Path, count: int) -> RecordStore:
    """Writes records that join others' groups: all of them have the number 0."""
    return _write(path, np.zeros(count, int), "public", 1)


def write_canaries(path: Path, fillers: int, canaries: int, copies: int = 1) -> RecordStore:
    """Writes a public store: first the canaries, with numbers from F on, then the F fillers, with those below.

    Args:
        path: of the store.
        fillers: records that are always there.
        canaries: units whose presence is to be guessed.
        copies: records of each canary's unit.
    """
    numbers = np.concatenate([np.repeat(np.arange(fillers, fillers + canaries), copies), np.arange(fillers)])
    return _write(path, numbers, "record", 0)


def _write(path: Path, numbers: np.ndarray, kind: str, seed: int) -> RecordStore:
    generator = np.random.default_rng(seed)
    images = 255 * generator.integers(0, 2, (len(numbers), SIDE * SIDE, 3), dtype=np.uint8)
    images[:, :_DIGITS, 0] = 255 * ((numbers[:, None] >> np.arange(_DIGITS)) & 1)
    with StoreWriter(path, name="canaries", kind="image", size=SIDE, public=True, unit_name="unit") as writer:
        for row, (number, image) in enumerate(zip(numbers, images, strict=True)):
            name = f"{kind} {number}"  # a record's key, and so its draws, follow from its name
            writer.add(RecordInput(f"{name} {row}", image.reshape(SIDE, SIDE, 3), unit=name))
    return RecordStore.open(path)


class CanaryModel(nn.Module):
    """Gradients as the auditor needs them.

    The embeddings do not depend on the weights, so that every step has the same gradients, whatever noise the weights took up.

    Args:
        fillers: F, numbers from here on are canaries.
        coordinates: P.
        arrangement: where gradients point. ``group``: each group has a coordinate, the number of its first filler, and a canary
            in it turns the gradient round; for engines that pass groups one by one. ``own``: each canary has a coordinate.
            ``one``: there is one coordinate for all.
        against: the canaries' gradients point the other way than the fillers'.
        scrambled: a group's gradient turns round, or not, by a hash of all its records, so that a record which changes more
            than its own group shows; for the same engines.

    Attributes:
        sign: +1 or -1, of all gradients; the auditor turns it from step to step, so that noise that repeats itself cancels.
        temperature: of the contrast.
    """

    def __init__(
        self, fillers: int, coordinates: int, arrangement: Arrangement, against: bool = True, scrambled: bool = False
    ) -> None:
        super().__init__()
        self.along = nn.Linear(coordinates, 1, bias=False)
        self.sign: Tensor
        self.temperature: Tensor
        self._hash: Tensor
        nn.init.zeros_(self.along.weight)
        self._fillers, self._arrangement, self._scrambled = fillers, arrangement, scrambled
        self._lengths = _FILLER, -_CANARY if against else _CANARY
        self.register_buffer("sign", torch.tensor(1.0))
        self.register_buffer("temperature", torch.tensor(1.0))
        self.register_buffer("_hash", torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(1)))

    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Each record's number, and a hash of it: ``(n,)`` both, of normalised images ``(n, 3, H, W)``."""
        pixels = (images > 0).float().flatten(2)
        powers = 2.0 ** torch.arange(_DIGITS, device=images.device)
        return (pixels[:, 0, :_DIGITS] * powers).sum(1), pixels[:, 2] @ self._hash

    def forward(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
        """``{"image": (S, V, 3, H, W)}`` -> ``{"image": (S, V, D)}`` of unit length."""
        images = views["image"]
        number, hashed = self.read(images[:, 0])
        push = self._push(number, hashed) * self.sign
        if self._scrambled:
            push = push * torch.where(torch.cos(10 * hashed.sum()) > 0, 1.0, -1.0)
        along = self.along(push)
        bits = (images[:, 0, 1] > 0).float().flatten(1)[:, :_WIDTH]
        z = normalize(1 + 0.8 * (2 * bits - 1), dim=1) * (1 + (along - along.detach()))
        return {"image": z[:, None].expand(-1, images.shape[1], -1)}

    def embed_images(self, images: Tensor) -> Tensor:
        """``(n, 3, H, W)`` -> ``(n, D)``, for engines that take a model apart."""
        return self({"image": images[:, None]})["image"][:, 0]

    def _push(self, number: Tensor, hashed: Tensor) -> Tensor:
        """``(S, P)`` where each record's gradient points, and how far."""
        places = torch.arange(self.along.in_features, device=number.device)
        canary, (filler, strong) = number >= self._fillers, self._lengths
        if self._arrangement == "group":
            first = torch.where(canary, -torch.inf, hashed)
            leads = (first == first.max()) & ~canary
            place = ((number[:, None] == places) & leads[:, None]).float().amax(0)
            return place * torch.where(canary.any(), strong, -strong) * torch.ones_like(number)[:, None]
        own = torch.where(canary, number - self._fillers + 1, 0) if self._arrangement == "own" else torch.zeros_like(number)
        return (own[:, None] == places).float() * torch.where(canary, strong, filler)[:, None]
