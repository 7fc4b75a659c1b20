"""Reads a matrix of features a block of rows at a time, without a copy of the whole matrix.

The matrix may be a NumPy array (also memory-mapped), a torch tensor, a data frame, a sparse matrix, a nested list, or a file
(`dpfed.arrays.files`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfed.arrays.files import Opened, opened
from dpfed.arrays.refusal import ArrayError
from dpfed.data.items.item import described

_MOST_COLUMNS = 65_536  # largest number of columns for which the sensitivity is proven (`dpfed.bounding.pair_moments`)
_NUMBERS, _MOST_ROWS = 1 << 20, 8192  # a block has at most this many numbers, and at most this many rows


@dataclass(frozen=True)
class Rows:
    """N rows of features, which are read a block at a time.

    Attributes:
        name: Name of the matrix in messages, such as ``X`` or ``Y``.
        shape: Shape of the matrix, (N, F), or (N, V, F) with V views.
        read: Function that takes row numbers ``(n,)``, ascending, or a slice, and returns these rows as a NumPy array.
        names: Names of the rows; ``None``: the source has none.
        columns: Names of the columns; ``None``: the source has none, or some are not strings.
        padding: Number of columns of zeros that `block` appends.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[Any], np.ndarray]
    names: Any = None
    columns: tuple[str, ...] | None = None
    padding: int = 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        """Number of columns, F, without padding."""
        return self.shape[-1]

    @property
    def views(self) -> int:
        """Number of views, V; 0: rows have no views."""
        return self.shape[1] if len(self.shape) == 3 else 0

    @property
    def together(self) -> int:
        """Largest number of rows in a block."""
        return max(1, min(_MOST_ROWS, _NUMBERS // ((self.width + self.padding) * max(1, self.views))))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the row numbers ``(n,)`` of each block."""
        for first in range(0, len(self), self.together):
            yield np.arange(first, min(first + self.together, len(self)))

    def padded(self, width: int) -> Rows:
        """Returns the rows, padded with columns of zeros to `width` columns."""
        return replace(self, padding=max(0, width - self.width))

    def block(self, rows: np.ndarray) -> np.ndarray:
        """Reads the rows with the given numbers.

        Args:
            rows: Row numbers, ``(n,)``, ascending.

        Returns:
            The rows, ``(n, max(V, 1), F + padding)``: float32 if the source has float16, bfloat16 or float32, else float64.
        """
        adjacent = len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())
        block = self.read(slice(int(rows[0]), int(rows[-1]) + 1) if adjacent else rows)
        block = block.astype(np.float32 if block.dtype in (np.float16, np.float32) else np.float64)
        block = block.reshape(len(rows), max(1, self.views), self.width)
        return np.pad(block, ((0, 0), (0, 0), (0, self.padding))) if self.padding else block

    def refuse_empty(self) -> None:
        """Refuses a matrix without a usable row, from which a fit would release noise alone.

        Raises:
            ArrayError: If every row is zero or has a number that is not finite.
        """
        for block in map(self.block, self.blocks()):
            if bool((np.isfinite(block).all(-1) & (block != 0).any(-1)).any()):
                return
        raise ArrayError(
            f"every row of {self.name} is zero or holds a number that is not finite, so nothing but noise would be released: "
            f"check how {self.name} was made. [arrays-nothing]"
        )


def rows_of(given: Any, name: str, least: int = 2) -> Rows:
    """Makes `Rows` of a matrix, whatever its type.

    Args:
        given: Matrix; the module's docstring lists its types.
        name: Name of the matrix in messages, such as ``X`` or ``Y``.
        least: Smallest allowed number of columns.

    Raises:
        ArrayError: If the argument is not a matrix of numbers, has an unsuitable shape, or is the path of a file that cannot be
            used; the message suggests a correction.
    """
    if isinstance(given, str | os.PathLike):
        rows = _of_file(opened(given, name), name)
    elif given is None:
        raise ArrayError(f"{name} is missing: expected one row of features for each record, got None. [arrays-none]")
    elif type(given).__module__.partition(".")[0] == "torch":
        rows = _of_tensor(given, name)
    elif hasattr(given, "tocsr"):
        rows = _of_sparse(given.tocsr(), name)
    elif hasattr(given, "iloc") and hasattr(given, "columns"):
        rows = _of_frame(given, name)
    else:
        rows = _of_array(given, name)
    _refuse_shape(rows, least)
    return rows


def _of_file(content: Opened, name: str) -> Rows:
    return replace(_of_array(content.features, name), names=content.names)


def _of_tensor(given: Any, name: str) -> Rows:
    import torch

    if not isinstance(given, torch.Tensor) or given.is_complex() or given.layout != torch.strided:
        raise ArrayError(f"{name} is {described(given)}: expected a dense tensor of real numbers. [arrays-tensor]")
    tensor = given.detach()

    def read(rows: Any) -> np.ndarray:
        part = tensor[rows if isinstance(rows, slice) else torch.from_numpy(rows).to(tensor.device)].cpu()
        return (part.float() if part.dtype in (torch.bfloat16, torch.float16) else part).numpy()

    return Rows(name, tuple(tensor.shape), read)


def _of_sparse(given: Any, name: str) -> Rows:
    _refuse_type(given.dtype, name)
    return Rows(name, tuple(given.shape), lambda rows: given[rows].toarray())


def _of_frame(given: Any, name: str) -> Rows:
    kinds = [kind.subtype if type(kind).__name__ == "SparseDtype" else kind for kind in given.dtypes]
    for column, kind in zip(given.columns, kinds, strict=True):
        if getattr(kind, "kind", "O") not in "biuf":
            raise ArrayError(
                f"column '{column}' of {name} holds {kind}: expected numbers in every column. Drop this column. If it holds "
                f"vectors, as `dpfed embed` writes them, give the file itself, or np.stack(frame['{column}']). [arrays-column]"
            )
    columns = tuple(given.columns) if all(isinstance(column, str) for column in given.columns) else None
    exact = np.result_type(*(getattr(kind, "numpy_dtype", kind) for kind in kinds)) if given.shape[1] else np.float64
    kind = exact if np.dtype(exact).kind == "f" else np.float64

    def read(rows: Any) -> np.ndarray:
        return given.iloc[rows].to_numpy(dtype=kind, na_value=np.nan)

    return Rows(name, tuple(given.shape), read, columns=columns)


def _of_array(given: Any, name: str) -> Rows:
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise _no_matrix(name, error) from error
    if array.dtype.kind in "OSU":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise _no_matrix(name, error) from error
    _refuse_type(array.dtype, name)
    return Rows(name, array.shape, lambda rows: array[rows])


def _no_matrix(name: str, error: Exception) -> ArrayError:
    return ArrayError(
        f"{name} is not a matrix of numbers ({error}): give an array of shape (rows, columns); np.stack(list) "
        "makes one of a list of vectors. [arrays-not-numbers]"
    )


def _refuse_type(kind: np.dtype, name: str) -> None:
    if kind.kind == "c":
        raise ArrayError(f"Complex data not supported: {name} holds {kind}; give real numbers. [arrays-complex]")
    if kind.kind not in "biuf":
        raise ArrayError(f"{name} holds {kind}: expected numbers. [arrays-type]")


def _refuse_shape(rows: Rows, least: int) -> None:
    name, shape = rows.name, rows.shape
    if len(shape) not in (2, 3):
        raise ArrayError(
            f"{name} has the shape {shape}: expected (rows, columns), or, for several views of each record, (rows, views, "
            "columns). Reshape your data; for labels, give one column for each class (1 or 0). [arrays-shape]"
        )
    if shape[-1] < least:
        why = ""
        if least > 1:
            why = ": every row is brought to unit length, so one number would keep only its sign"
        raise ArrayError(
            f"{name} has {shape[-1]} feature(s) (shape={shape}) while a minimum of {least} is required{why}. Give more "
            "columns, such as one for each class. [arrays-one-column]"
        )
    if shape[-1] > _MOST_COLUMNS:
        raise ArrayError(
            f"{name} has {shape[-1]:,} columns, and the guarantee is proven for {_MOST_COLUMNS:,} at most: project it with a "
            "public matrix first, such as sklearn.random_projection's with a fixed random_state. [arrays-wide]"
        )
    if len(shape) == 3 and not 2 <= shape[1] <= 64:
        raise ArrayError(f"{name} has {shape[1]} views of each record: expected 2 to 64. [arrays-views]")
