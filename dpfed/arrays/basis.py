"""The public basis of a fit: the mean and the first principal components of public rows, fixed before a private row is read.

It is the map of a run whose `bounding.options.basis` is ``store``: equal public features give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpfed.arrays.records import ArrayRecords, same
from dpfed.arrays.refusal import ArrayError
from dpfed.arrays.rows import Rows, rows_of
from dpfed.bounding.methods.moments import BASIS_ROWS
from dpfed.models.basis import FEWEST_PUBLIC, MOST_PUBLIC, SIDES, Basis, Side, fingerprint, principal_basis, written

RANDOM = "random"
_MOST_COLUMNS = 8192  # whose eigenvectors take minutes, and not hours
_SHARED_TEXTS = 100  # distinct rows of Y that may be public too, less one: captions that name a class


@dataclass(frozen=True)
class PublicArrays:
    """A basis, and the public rows that it was made of.

    Attributes:
        bases: of X, ``image``, and of Y, ``text``.
        fingerprint: of all its numbers; a run names its basis alike.
        rows: the public rows of X and of Y.
    """

    bases: Mapping[Side, Basis]
    fingerprint: str
    rows: tuple[Rows, Rows]


def basis_of(given: Any, x: Rows, y: Rows | None, aligned: bool, dimensions: int | None) -> PublicArrays | None:
    """Makes the basis that a fit was given; it reads public rows, and of the private ones only the shapes.

    Args:
        given: ``None`` or ``"random"``; or a pair of matrices of public rows, for X and for Y.
        x: the private rows.
        y: the same.
        aligned: whether features of a record are similar already; they are not projected then.
        dimensions: k, if the user set it.

    Returns:
        ``None`` for a random basis.

    Raises:
        ArrayError: if the public rows cannot make a basis.
    """
    if given is None or (isinstance(given, str) and given == RANDOM):
        return None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ArrayError(
            f"basis = {_said(given)}: expected a pair of matrices of public rows, basis=(public_X, public_Y), or 'random'. "
            "[arrays-basis]"
        )
    if y is None or aligned:
        what = "the views of an image" if y is None else "aligned features"
        raise ArrayError(
            f"basis= is for two matrices that are not aligned: {what} are not projected. Leave it out. [arrays-basis-aligned]"
        )
    rows = (_public(given[0], "basis[0]", x), _public(given[1], "basis[1]", y))
    most = max(BASIS_ROWS, dimensions or 0)
    bases = {side: principal_basis(torch.from_numpy(_content(one)), most) for side, one in zip(SIDES, rows, strict=True)}
    return PublicArrays(bases, fingerprint(written(bases)), rows)


def refuse_shared(public: PublicArrays, records: ArrayRecords) -> None:
    """Refuses public rows that are among the private ones, number by number.

    Captions of classes may be in both: Y may share up to 99 different rows.

    Args:
        public: the basis.
        records: the private rows.

    Raises:
        ArrayError: how many rows are shared is private, so it names none.
    """
    assert records.y is not None  # `basis_of` refuses views alone
    for name, known, own, least in (("X", public.rows[0], records.x, 1), ("Y", public.rows[1], records.y, _SHARED_TEXTS)):
        contents, found = set(_contents(known)), set()
        for content in _contents(own):
            if content in contents:
                found.add(content)
                if len(found) >= least:
                    raise ArrayError(
                        f"basis: {known.name} and {name} share rows, and a record cannot be both public and private. Leave "
                        "these records out of X and Y; leaving them out of the public rows would tell which they are. "
                        "[arrays-basis-shared]"
                    )


def padded(basis: Basis, rows: int) -> Basis:
    """A basis of at least so many rows: rows of zeros follow its own."""
    missing = max(0, rows - len(basis.rows))
    return Basis(torch.cat([basis.rows, basis.rows.new_zeros(missing, basis.rows.shape[1])]), basis.centre)


def bases_in(heads: Mapping[str, np.ndarray]) -> dict[Side, Basis]:
    """The bases that are among the heads of a fit: the rows that it used.

    Raises:
        ValueError: if they are no bases.
    """
    tensors = {name: torch.from_numpy(numbers) for name, numbers in heads.items()}
    return {side: Basis(tensors[f"{side}.projection"], tensors[f"{side}.origin"]) for side in SIDES}


def _public(given: Any, name: str, own: Rows) -> Rows:
    rows = rows_of(given, name)
    if rows.views:
        raise ArrayError(f"{name} has the shape {rows.shape}: expected (rows, columns). [arrays-basis-shape]")
    if rows.width != own.width:
        raise ArrayError(
            f"{name} has {rows.width:,} columns and {own.name} {own.width:,}: public rows must be features of the same tower. "
            "[arrays-basis-columns]"
        )
    if rows.width > _MOST_COLUMNS:
        raise ArrayError(
            f"{name} has {rows.width:,} columns, and a basis is made of {_MOST_COLUMNS:,} at most: project public and private "
            "rows with one public matrix first, or leave basis out. [arrays-basis-wide]"
        )
    if rows.columns is not None and own.columns is not None and rows.columns != own.columns:
        raise ArrayError(
            f"the columns of {name} have other names, or another order, than those of {own.name}. [arrays-basis-names]"
        )
    return rows


def _content(rows: Rows) -> np.ndarray:
    """Public rows ``(n, F)``: all, or 10,000 that are evenly spaced."""
    count = min(len(rows), MOST_PUBLIC)
    content = rows.block(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))[:, 0] if count else np.zeros((0, 1))
    if not np.isfinite(content).all():
        raise ArrayError(f"{rows.name} holds numbers that are not finite: leave these public rows out. [arrays-basis-nan]")
    there = int(content.any(1).sum())
    if there < FEWEST_PUBLIC:
        raise ArrayError(
            f"{rows.name} has {there:,} rows other than zero, and a basis needs {FEWEST_PUBLIC} public rows or more: give "
            "more, or leave basis out. [arrays-basis-few]"
        )
    return content


def _contents(rows: Rows) -> Iterator[bytes]:
    """Rows as bytes; those that are zero or not finite add nothing to a sum, and are left out."""
    for numbers in rows.blocks():
        block = rows.block(numbers)
        counts = np.isfinite(block).all((1, 2)) & block.any((1, 2))
        yield from (same(row) for row in block[counts])


def _said(given: Any) -> str:
    return repr(given) if isinstance(given, str | int | float) else f"a {type(given).__name__}"
