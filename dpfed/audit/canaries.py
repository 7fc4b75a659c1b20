"""Canaries: generated records, and a model under which each canary moves the sum as far as a record can.

An audit of the mechanism needs no private record and no real model. Its records are generated pictures of 8 x 8 pixels that
each encode a number. Its model reads the numbers and has gradients that the auditor chose, with norms large enough to clip:
Dirac canaries (Nasr et al. 2023; Andrew et al. 2024). Everything else is the code of a real run: draws, groups, views, engines,
clipping, noise, ledger, optimizer.
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

SIDE = 8  # width and height of a picture in pixels
_DIGITS = 24  # binary digits of a record's number
_WIDTH = 16  # dimensions of an embedding
_FILLER, _CANARY = 1e3, 1e6  # lengths of gradients before clipping: a canary outweighs its group

Arrangement = Literal["group", "own", "one"]


def write_public(path: Path, count: int) -> RecordStore:
    """Writes a store of public records, which methods add to the groups of other records. Every picture encodes number 0."""
    return _write(path, np.zeros(count, int), "public", 1)


def write_canaries(path: Path, fillers: int, canaries: int, copies: int = 1) -> RecordStore:
    """Writes a public store: first the canaries, with numbers from F on, then the F fillers, with numbers below F.

    Args:
        path: Path of the store.
        fillers: Number of records that are always present, F.
        canaries: Number of units whose presence the attack guesses.
        copies: Number of records of each canary's unit.
    """
    numbers = np.concatenate([np.repeat(np.arange(fillers, fillers + canaries), copies), np.arange(fillers)])
    return _write(path, numbers, "record", 0)


def _write(path: Path, numbers: np.ndarray, kind: str, seed: int) -> RecordStore:
    generator = np.random.default_rng(seed)
    images = 255 * generator.integers(0, 2, (len(numbers), SIDE * SIDE, 3), dtype=np.uint8)
    images[:, :_DIGITS, 0] = 255 * ((numbers[:, None] >> np.arange(_DIGITS)) & 1)
    with StoreWriter(path, name="canaries", kind="image", size=SIDE, public=True, unit_name="unit") as writer:
        for row, (number, image) in enumerate(zip(numbers, images, strict=True)):
            name = f"{kind} {number}"  # a record's name determines its key, and so its draws
            writer.add(RecordInput(f"{name} {row}", image.reshape(SIDE, SIDE, 3), unit=name))
    return RecordStore.open(path)


class CanaryModel(nn.Module):
    """A model with gradients that the auditor chooses.

    The values of the embeddings do not depend on the weights. So the gradients are the same in every step, whatever noise was
    added to the weights.

    Args:
        fillers: Number of fillers, F; records with numbers from F on are canaries.
        coordinates: Number of parameters, P.
        arrangement: Parameters that the gradients move. ``group``: a group's gradient moves a single parameter. The index of
            this parameter is the number of the filler with the largest hash in the group (`read`), and a canary in the group
            reverses the gradient's sign. The engine must compute each group separately. ``own``: each canary moves a parameter
            of its own, and all fillers move parameter 0. ``one``: all records move the same parameter.
        against: Whether the canaries' gradients point in the opposite direction to the fillers'.
        scrambled: Whether a hash of all records of a group decides the sign of its gradient. Then a record that wrongly
            changes another group is noticed, because that group's sign may change. The engine must take groups one by one.

    Attributes:
        sign: Sign of all gradients, +1 or -1. The auditor alternates the sign between steps: if a faulty mechanism adds the
            same noise in every step, the noise cancels in the scores.
        temperature: Temperature of the contrast.
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
        """Returns the number that each image encodes, and a hash of each image.

        Args:
            images: Normalised images, ``(n, 3, H, W)``.

        Returns:
            Numbers, ``(n,)``, and hashes, ``(n,)``.
        """
        pixels = (images > 0).float().flatten(2)
        powers = 2.0 ** torch.arange(_DIGITS, device=images.device)
        return (pixels[:, 0, :_DIGITS] * powers).sum(1), pixels[:, 2] @ self._hash

    def forward(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
        """Embeds V views of each of a group's S records, with unit length.

        Args:
            views: Normalised images, ``{"image": (S, V, 3, H, W)}``.

        Returns:
            The embeddings, ``{"image": (S, V, D)}``.
        """
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
        """Embeds images, ``(n, 3, H, W)`` -> ``(n, D)``, for engines that call the towers separately."""
        return self({"image": images[:, None]})["image"][:, 0]

    def _push(self, number: Tensor, hashed: Tensor) -> Tensor:
        """Returns the direction of each record's gradient, times a factor that scales the gradient, ``(S, P)``."""
        places = torch.arange(self.along.in_features, device=number.device)
        canary, (filler, strong) = number >= self._fillers, self._lengths
        if self._arrangement == "group":
            first = torch.where(canary, -torch.inf, hashed)
            leads = (first == first.max()) & ~canary
            place = ((number[:, None] == places) & leads[:, None]).float().amax(0)
            return place * torch.where(canary.any(), strong, -strong) * torch.ones_like(number)[:, None]
        spot = torch.where(canary, number - self._fillers + 1, 0) if self._arrangement == "own" else torch.zeros_like(number)
        return (spot[:, None] == places).float() * torch.where(canary, strong, filler)[:, None]
