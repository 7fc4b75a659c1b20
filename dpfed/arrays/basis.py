"""Makes the public basis of a fit: mean and first principal components of public rows, fixed before a private row is read.

A run whose `bounding.options.basis` is ``store`` computes the same basis: equal public features give equal bits.
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
_MOST_COLUMNS = 8192  # largest number of columns: their eigenvectors take minutes, and not hours
_SHARED_TEXTS = 100  # from so many distinct public rows among those of Y they are refused: a few may be captions of classes


@dataclass(frozen=True)
class PublicArrays:
    """A basis, and the public rows from which it was computed.

    Attributes:
        bases: Basis of X under the key ``image``, and of Y under the key ``text``.
        fingerprint: Fingerprint of all numbers of the bases, computed as in a run.
        rows: Public rows of X and of Y.
    """

    bases: Mapping[Side, Basis]
    fingerprint: str
    rows: tuple[Rows, Rows]


def basis_of(given: Any, x: Rows, y: Rows | None, aligned: bool, dimensions: int | None) -> PublicArrays | None:
    """Makes the basis that the user asked for; of the private rows it reads only shapes and column names.

    Args:
        given: Basis as the user gave it: ``None``, ``"random"``, or a pair of matrices of public rows, for X and for Y.
        x: Private rows of X.
        y: Private rows of Y; ``None``: the fit has no Y.
        aligned: Whether the two features of a record are similar already, as those of a CLIP model; such features take no
            public basis.
        dimensions: Number of dimensions after the projection, k; ``None``: the user did not set it.

    Returns:
        The basis; ``None`` for a random basis.

    Raises:
        ArrayError: If `given` is not ``None``, ``"random"`` or a pair of suitable matrices, or if it is a pair although the fit
            has no Y or gets aligned features.
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
            f"basis= is only for an X and a Y that are not aligned: {what} take no public basis. Leave basis out. "
            "[arrays-basis-aligned]"
        )
    rows = (_public(given[0], "basis[0]", x), _public(given[1], "basis[1]", y))
    most = max(BASIS_ROWS, dimensions or 0)
    bases = {side: principal_basis(torch.from_numpy(_content(each)), most) for side, each in zip(SIDES, rows, strict=True)}
    return PublicArrays(bases, fingerprint(written(bases)), rows)


def refuse_shared(public: PublicArrays, records: ArrayRecords) -> None:
    """Refuses public rows that equal a private row in every number.

    Captions that name a class may be both public and private, so Y may share up to 99 different rows.

    Args:
        public: Basis with its public rows.
        records: Private rows.

    Raises:
        ArrayError: If X shares a row with its public rows, or Y shares 100 different rows with its public rows. The number of
            shared rows is private, so the message does not state it.
    """
    assert records.y is not None  # `basis_of` refuses views alone
    for name, known, private, least in (("X", public.rows[0], records.x, 1), ("Y", public.rows[1], records.y, _SHARED_TEXTS)):
        contents, shared = set(_contents(known)), set()
        for content in _contents(private):
            if content in contents:
                shared.add(content)
                if len(shared) >= least:
                    raise ArrayError(
                        f"basis: {known.name} and {name} share rows, and a record cannot be both public and private. Leave "
                        "these records out of X and Y; leaving them out of the public rows would tell which they are. "
                        "[arrays-basis-shared]"
                    )


def padded(basis: Basis, rows: int) -> Basis:
    """Pads a basis with rows of zeros to at least `rows` rows."""
    missing = max(0, rows - len(basis.rows))
    return Basis(torch.cat([basis.rows, basis.rows.new_zeros(missing, basis.rows.shape[1])]), basis.centre)


def bases_in(heads: Mapping[str, np.ndarray]) -> dict[Side, Basis]:
    """Returns the bases that are stored among the tensors of a fit's heads, each with as many rows as the fit has dimensions.

    Raises:
        KeyError: If the heads hold no bases.
        ValueError: If the tensors are not valid bases.
    """
    tensors = {name: torch.from_numpy(numbers) for name, numbers in heads.items()}
    return {side: Basis(tensors[f"{side}.projection"], tensors[f"{side}.origin"]) for side in SIDES}


def _public(given: Any, name: str, private: Rows) -> Rows:
    """Returns the public rows for a matrix.

    Args:
        given: Matrix of public rows, as the user gave it.
        name: Name of that matrix in messages.
        private: Private rows, whose columns the public rows must have.

    Raises:
        ArrayError: If the matrix does not have two dimensions, has too many columns, or its columns differ from those of the
            private rows in number, names or order.
    """
    rows = rows_of(given, name)
    if rows.views:
        raise ArrayError(f"{name} has the shape {rows.shape}: expected (rows, columns). [arrays-basis-shape]")
    if rows.width != private.width:
        raise ArrayError(
            f"{name} has {rows.width:,} columns and {private.name} {private.width:,}: public rows must be features of the same "
            "tower. [arrays-basis-columns]"
        )
    if rows.width > _MOST_COLUMNS:
        raise ArrayError(
            f"{name} has {rows.width:,} columns, and a basis can have {_MOST_COLUMNS:,} at most: project public and private "
            "rows with one public matrix first, or leave basis out. [arrays-basis-wide]"
        )
    if rows.columns is not None and private.columns is not None and rows.columns != private.columns:
        raise ArrayError(
            f"the columns of {name} differ from those of {private.name} in their names or their order: give the same columns "
            "in the same order. [arrays-basis-names]"
        )
    return rows


def _content(rows: Rows) -> np.ndarray:
    """Returns public rows, ``(n, F)``: all rows, or `MOST_PUBLIC` evenly spaced rows if there are more.

    Raises:
        ArrayError: If a number is not finite, or fewer than `FEWEST_PUBLIC` rows have a number other than 0.
    """
    count = min(len(rows), MOST_PUBLIC)
    content = rows.block(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))[:, 0] if count else np.zeros((0, 1))
    if not np.isfinite(content).all():
        raise ArrayError(f"{rows.name} holds numbers that are not finite: leave these public rows out. [arrays-basis-nan]")
    there = int(content.any(1).sum())
    if there < FEWEST_PUBLIC:
        raise ArrayError(
            f"{rows.name} has only {there:,} rows that are not zero, but a basis needs {FEWEST_PUBLIC} public rows or more: "
            "give more, or leave basis out. [arrays-basis-few]"
        )
    return content


def _contents(rows: Rows) -> Iterator[bytes]:
    """Yields each row as bytes, except rows that add nothing to a sum: all zeros, or with a number that is not finite."""
    for numbers in rows.blocks():
        block = rows.block(numbers)
        counts = np.isfinite(block).all((1, 2)) & block.any((1, 2))
        yield from (same(row) for row in block[counts])


def _said(given: Any) -> str:
    return repr(given) if isinstance(given, str | int | float) else f"a {type(given).__name__}"
