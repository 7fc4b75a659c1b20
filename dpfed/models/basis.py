"""A public basis: an affine map of a tower's features of unit length, applied before any private sum is computed.

Its numbers are fixed before any private record is read. They are either random rows that anyone can draw again, or the mean and
the first principal components of *public* features. Principal components need fewer dimensions, so the moments get less noise.
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
MOST_PUBLIC, FEWEST_PUBLIC = 10_000, 100  # largest and smallest number of the user's public records for a basis


@dataclass(frozen=True)
class Basis:
    """The public map ``f -> P (f/|f| - c)`` of one tower; results are scaled to unit length.

    Args:
        rows: Matrix P, ``(k, F)`` float32, its rows orthonormal up to rounding.
        centre: Vector c, ``(F,)`` float32, of norm at most 1; ``None``: 0.

    Raises:
        ValueError: If `rows` is not a matrix of finite numbers, or all of them are 0; if the centre does not have F numbers; or
            if the centre's norm exceeds 1, which the norm of a mean of unit vectors cannot do.
    """

    rows: Tensor
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rows.ndim != 2:
            raise ValueError(f"expected rows to be a matrix, got the shape {tuple(self.rows.shape)}")
        if not bool(self.rows.isfinite().all()):
            raise ValueError("the rows contain numbers that are not finite")
        if not bool(self.rows.any()):  # every projection would be 0, which has no unit length
            raise ValueError("all rows are zero")
        if self.centre is not None and (
            self.centre.shape != self.rows.shape[1:] or not self.centre.double().norm().item() <= 1 + 1e-6
        ):
            raise ValueError(
                f"expected a centre of {self.rows.shape[1]} numbers whose norm is at most 1, got the shape "
                f"{tuple(self.centre.shape)} and the norm {self.centre.double().norm().item():.7g}"
            )

    def first(self, dimensions: int) -> Basis:
        """Returns the basis of the first k rows.

        Args:
            dimensions: k, number of rows.

        Raises:
            ValueError: If there are fewer than k rows.
        """
        if dimensions > len(self.rows):
            raise ValueError(f"the basis has {len(self.rows)} rows; expected {dimensions} or more")
        return Basis(self.rows[:dimensions], self.centre)

    def project(self, features: Tensor) -> Tensor:
        """Maps features ``(..., F)`` to ``(..., k)`` of unit length; a vector that maps to 0 stays 0.

        Features that are all 0 map to 0, also if the basis has a centre. The engine computes the same map with integer sums
        (`dpfed.bounding.pair_moments`).
        """
        return projected(features, self.rows, self.centre)


def projected(features: Tensor, rows: Tensor, centre: Tensor | None) -> Tensor:
    """Maps features as `Basis.project` does, without the checks of a `Basis`."""
    if centre is not None:
        features = torch.where((features != 0).any(-1, keepdim=True), F.normalize(features, dim=-1) - centre, 0.0)
    return F.normalize(features @ rows.T, dim=-1)


def random_basis(width: int, dimensions: int, number: int) -> Basis:
    """Draws k random orthonormal rows from a public seed; returns the identity if k equals F.

    Args:
        width: F, width of the tower's features.
        dimensions: k, number of rows, at most F.
        number: Number of the tower, which is part of the seed.
    """
    if width == dimensions:
        return Basis(torch.eye(width))
    seed = hashlib.sha256(f"dpfed moments {width} {dimensions} {number}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "little"))
    drawn = torch.randn(width, dimensions, generator=generator, dtype=torch.float64)
    return Basis(torch.linalg.qr(drawn)[0].T.float().contiguous())


def random_bases(widths: tuple[int, ...], dimensions: int, alike: bool) -> dict[Side, Basis]:
    """Draws random rows for each tower.

    Args:
        widths: F of each tower, the image tower's first.
        dimensions: k, number of rows.
        alike: Whether the towers are aligned (trained to give the image and the text of a pair similar features). Aligned
            towers share one projection.
    """
    return {
        side: random_basis(width, dimensions, 0 if alike else number)
        for number, (side, width) in enumerate(zip(SIDES, widths, strict=False))
    }


def principal_basis(features: Tensor, most: int) -> Basis:
    """Scales public features to unit length, and computes their mean and first principal components.

    All numbers are rounded to float16, which halves their size in a federation's terms. Rows stay orthonormal up to 0.1 %.

    Args:
        features: Features of public records, ``(n, F)``. Rows that are zero or not finite are left out.
        most: Largest number of components. With m usable rows, the basis never has more than m - 1, or more than F.

    Raises:
        ValueError: If fewer than two rows are usable.
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
    """Serialises the towers' bases as safetensors in float16, which changes none of the numbers of `principal_basis`."""
    tensors = {}
    for side, basis in bases.items():
        tensors[f"{side}.projection"] = basis.rows
        if basis.centre is not None:
            tensors[f"{side}.origin"] = basis.centre
    return save({name: numbers.detach().cpu().half().contiguous() for name, numbers in sorted(tensors.items())})


def read(content: bytes) -> dict[Side, Basis]:
    """Parses the bytes that `written` returned.

    Raises:
        ValueError: If the bytes are not those of a basis.
    """
    try:
        tensors = {name: numbers.float() for name, numbers in load(content).items()}
        bases = {side: Basis(tensors[f"{side}.projection"], tensors.get(f"{side}.origin")) for side in SIDES[:1]}
        text = tensors.get("text.projection")
        return bases if text is None else {**bases, "text": Basis(text, tensors.get("text.origin"))}
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"not a basis of towers: {error}") from error


def fingerprint(content: bytes) -> str:
    """Computes the fingerprint of a serialised basis (`written`): 32 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(content).hexdigest()[:32]


def _portable(numbers: Tensor) -> Tensor:
    """Rounds numbers to float16 precision and returns them as float32."""
    return numbers.half().float().contiguous()
