"""A public basis: the affine map that a tower's features take before anything private is computed from them.

Its numbers are known before any record is read: rows that anyone can draw again, or the mean and the first principal components
of *public* features. These need fewer dimensions than random rows, and noise on moments grows with the dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

Side = Literal["image", "text"]
SIDES: tuple[Side, Side] = ("image", "text")


@dataclass(frozen=True)
class Basis:
    """The public map ``f -> P (f/|f| - c)`` of one tower, to unit length.

    Args:
        rows: P, ``(k, F)`` float32 with rows that are orthonormal, or nearly so.
        centre: c, ``(F,)`` float32, which is at most 1 long; ``None``: 0.

    Raises:
        ValueError: for other shapes, rows that are all 0, or a centre that is longer than any mean of vectors of unit length.
    """

    rows: Tensor
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or not bool(self.rows.isfinite().all()):
            raise ValueError(f"rows are a matrix of finite numbers, got the shape {tuple(self.rows.shape)}")
        if not bool(self.rows.any()):  # nothing could be divided by their length
            raise ValueError("all rows are zero")
        if self.centre is not None and (
            self.centre.shape != self.rows.shape[1:] or not self.centre.double().norm().item() <= 1 + 1e-6
        ):
            raise ValueError(f"a centre has {self.rows.shape[1]} numbers and at most length 1, got {tuple(self.centre.shape)}")

    def first(self, dimensions: int) -> Basis:
        """The same with its first k rows.

        Raises:
            ValueError: if it has fewer.
        """
        if dimensions > len(self.rows):
            raise ValueError(f"the basis has {len(self.rows)} rows, and {dimensions} are wanted")
        return Basis(self.rows[:dimensions], self.centre)

    def project(self, features: Tensor) -> Tensor:
        """``(..., F)`` -> ``(..., k)`` of unit length; what the map takes to 0 stays 0.

        Sums of records are made of the same map, in whole numbers (`dpfed.bounding.pair_moments`).
        """
        if self.centre is not None:
            features = F.normalize(features, dim=-1) - self.centre
        return F.normalize(features @ self.rows.T, dim=-1)


def random_basis(width: int, dimensions: int, number: int) -> Basis:
    """Random orthonormal rows that anyone can draw again; the identity where nothing is left out.

    Args:
        width: F.
        dimensions: k.
        number: of the tower.
    """
    if width == dimensions:
        return Basis(torch.eye(width))
    seed = hashlib.sha256(f"dpfed moments {width} {dimensions} {number}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "little"))
    drawn = torch.randn(width, dimensions, generator=generator, dtype=torch.float64)
    return Basis(torch.linalg.qr(drawn)[0].T.float().contiguous())


def random_bases(widths: tuple[int, ...], dimensions: int, alike: bool) -> dict[Side, Basis]:
    """Random rows for each tower.

    Args:
        widths: F of each tower, image first.
        dimensions: k.
        alike: whether features of a pair are alike, which must be projected alike.
    """
    return {
        side: random_basis(width, dimensions, 0 if alike else number)
        for number, (side, width) in enumerate(zip(SIDES, widths, strict=False))
    }


def principal_basis(features: Tensor, most: int) -> Basis:
    """The mean and the first principal components of public features of unit length.

    Numbers are rounded to float16, so that a basis takes half the room where it travels; its rows stay orthonormal up to 0.1 %.

    Args:
        features: ``(n, F)``, of public records. Those that are zero, or not finite, are left out.
        most: rows that are kept, no more than n - 1 and F.

    Raises:
        ValueError: for less than two features.
    """
    features = features.double()
    features = features[features.isfinite().all(1) & features.any(1)]
    if len(features) < 2:
        raise ValueError(f"a basis needs two public features or more, got {len(features)}")
    unit = F.normalize(features, dim=1)
    centre = unit.mean(0)
    apart = unit - centre
    _, vectors = torch.linalg.eigh(apart.T @ apart)
    rows = vectors.T.flip(0)[: min(most, len(features) - 1)]
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return Basis(_portable(rows * largest.sign()), _portable(centre * (1 - 2.0**-10)))  # no longer than 1 after rounding


def written(bases: Mapping[Side, Basis]) -> bytes:
    """Bases of towers as a safetensors file, in float16: `principal_basis` gives no other numbers."""
    tensors = {}
    for side, basis in bases.items():
        tensors[f"{side}.projection"] = basis.rows
        if basis.centre is not None:
            tensors[f"{side}.origin"] = basis.centre
    return save({name: numbers.detach().cpu().half().contiguous() for name, numbers in sorted(tensors.items())})


def read(content: bytes) -> dict[Side, Basis]:
    """The bases that `written` gave.

    Raises:
        ValueError: for other bytes.
    """
    try:
        tensors = {name: numbers.float() for name, numbers in load(content).items()}
        found = {side: Basis(tensors[f"{side}.projection"], tensors.get(f"{side}.origin")) for side in SIDES[:1]}
        text = tensors.get("text.projection")
        return found if text is None else {**found, "text": Basis(text, tensors.get("text.origin"))}
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"not a basis of towers: {error}") from error


def fingerprint(content: bytes) -> str:
    """Of a basis, as `written` gave it, hexadecimal."""
    return hashlib.sha256(content).hexdigest()[:32]


def _portable(numbers: Tensor) -> Tensor:
    """As float32 with the digits of float16."""
    return numbers.half().float().contiguous()
