"""Computes gradient norms of similarities, and of sums of similarities, without materialising any of these gradients.

The gradient of the similarity of anchor a and candidate c is ``J_a^T c + J_c^T a``, with J the Jacobians of their embeddings;
the gradient of any function of the embeddings is ``sum over rows r of J_r^T w_r``, with w_r the derivative of the function with
respect to embedding r. The norms of these gradients are computed in one of two ways:

- `ExactNorms` adds up squares over slices of the parameters, from factors of all Jacobians. Work and workspace grow with the
  number of pairs; the memory of the factors grows with the number of embeddings.
- `NormBounds` needs only the D x D matrices ``A_r = J_r J_r^T``: ``|J_r^T w| = sqrt(w^T A_r w)`` is exact for one embedding,
  and the triangle inequality bounds sums of these. Memory and the passes through the model are linear in the batch. Clipping by
  an upper bound of a norm clips more than needed, never less.

Where no parameter serves two towers, the parts of a gradient that belong to images and to texts are orthogonal: their norms are
added as squares, and then the bound for a pair of an image and a text is exact, too.

This module also defines which embeddings a whole batch contrasts, and the derivatives of the loss with respect to each
similarity. One matrix ``(R, D)`` holds all embeddings of a batch of n records: the image views of record 0, of record 1, ...,
then the texts in the same order. A `Contrast` is one direction of the loss of `dpfed.objectives.infonce`: an anchor for each
record, and m candidates of each record, the first of which is the positive of its own record's anchor.

Shapes: n records, R embedding rows, D dimensions, m candidates of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfed.baselines.whole_batch.jacobians import Block


@dataclass(frozen=True)
class Contrast:
    """One direction of the loss: the anchors, and the candidates with which each anchor is contrasted.

    Attributes:
        anchors: Row numbers of the anchors, ``(n,)``.
        candidates: Row numbers of the candidates, ``(n, m)``.
        towers: Towers that embed the anchors and the candidates, each ``image`` or ``text``.
    """

    anchors: Tensor
    candidates: Tensor
    towers: tuple[str, str]

    def similarities(self, rows: Tensor) -> Tensor:
        """Computes the cosines ``(n, n, m)`` of all anchors and candidates from embeddings ``(R, D)`` of unit length."""
        return (rows[self.anchors] @ rows[self.candidates.reshape(-1)].T).unflatten(1, self.candidates.shape)

    def cotangents(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Computes the derivative ``(R, D)`` of the weighted sum of similarities with respect to the embeddings.

        Args:
            rows: Embeddings ``(R, D)``.
            weights: Weights of the similarities, ``(n, n, m)``.
        """
        flat, others = weights.flatten(1), self.candidates.reshape(-1)
        result = torch.zeros_like(rows).index_add_(0, self.anchors, flat @ rows[others])
        return result.index_add_(0, others, flat.T @ rows[self.anchors])


def contrasts(shape: dict[str, tuple[int, int]], device: torch.device) -> list[Contrast]:
    """Returns both directions of the contrast.

    Args:
        shape: Numbers of records and views, ``{"image": (n, V)}``, V >= 2, or ``{"image": (n, V), "text": (n, W)}``.
        device: Device of the row numbers.
    """
    n, views = shape["image"]
    images = torch.arange(n * views, device=device).view(n, views)
    if "text" in shape:
        texts = n * views + torch.arange(n * shape["text"][1], device=device).view(n, -1)
        return [Contrast(images[:, 0], texts, ("image", "text")), Contrast(texts[:, 0], images, ("text", "image"))]
    back = torch.cat([images[:, :1], images[:, 2:]], dim=1)
    return [Contrast(images[:, 0], images[:, 1:], ("image", "image")), Contrast(images[:, 1], back, ("image", "image"))]


def contrastive_derivatives(similarities: Tensor, temperature: float) -> Tensor:
    """Computes the derivatives of the InfoNCE loss with respect to the similarities.

    The loss of anchor i is the negative logarithm of the softmax weight of its positive, among its positive and all candidates
    of other records. The other candidates of record i take no part.

    Args:
        similarities: Cosines ``(n, n, m)``.
        temperature: Temperature, by which the cosines are divided.

    Returns:
        Derivatives ``(n, n, m)``; row i holds those of the loss of anchor i.
    """
    n, _, m = similarities.shape
    records = torch.arange(n, device=similarities.device)
    logits = similarities / temperature
    logits[records, records, 1:] = -torch.inf
    weights = logits.view(n, n * m).softmax(1).view(n, n, m)
    weights[records, records, 0] -= 1
    return weights / temperature


def spread_out_derivatives(similarities: Tensor) -> Tensor:
    """Computes the derivatives of the spread-out regulariser (Zhang et al. 2017) with respect to the similarities.

    The term of an anchor is its mean squared cosine with the candidates of other records.

    Args:
        similarities: Cosines ``(n, n, m)``, n >= 2.

    Returns:
        Derivatives ``(n, n, m)``; row i holds those of the term of anchor i.
    """
    n, _, m = similarities.shape
    weights = 2 * similarities / ((n - 1) * m)
    records = torch.arange(n, device=similarities.device)
    weights[records, records] = 0
    return weights


_WORKSPACE = 1 << 23  # largest number of floats of an intermediate result
_COLUMNS = 1 << 10  # parameters in a slice
_BLOCK = 1 << 18  # floats of gradients of pairs that are written and read at a time: they stay in the cache
# Fractions of the traces of A_r that are added to squared norms, so that the rounding of float64 is small beside the norms.
_FLOOR = 1e-6  # fraction for the case that w is nearly orthogonal to all of J
_CANCELLED = 1e-8  # fraction for the case that the rows' parts of a gradient nearly cancel


class Norms(Protocol):
    """Upper bounds of gradient norms, or the norms themselves."""

    finite: Tensor
    """Mask ``(R,)`` bool of the embeddings whose Jacobian is finite."""

    def of_pairs(self, rows: Tensor, contrast: Contrast) -> Tensor:
        """Computes, for each similarity, the norm of its gradient with respect to the parameters, or an upper bound of it.

        Args:
            rows: Embeddings ``(R, D)`` float64.
            contrast: Anchors and candidates.

        Returns:
            Norms ``(n, n, m)`` float64.
        """

    def of_sums(self, cotangents: Iterator[Tensor]) -> Tensor:
        """Computes, for each function of the embeddings, the norm of its gradient with respect to the parameters.

        Instead of the norm, it may compute an upper bound.

        Args:
            cotangents: Chunks with the derivatives of a few functions, k, with respect to the embeddings, each ``(k, R, D)``
                float64.

        Returns:
            Norms ``(n,)`` float64, where n counts the functions of all chunks.
        """


class NormBounds:
    """Computes upper bounds of gradient norms by the triangle inequality.

    Args:
        grams: Matrices ``A_r = J_r J_r^T``, ``(R, D, D)`` float64.
        towers: Rows that each tower embeds.
        disjoint: Whether no parameter serves two towers.
    """

    def __init__(self, grams: Tensor, towers: dict[str, slice], disjoint: bool) -> None:
        traces = grams.diagonal(dim1=1, dim2=2).sum(1)
        self.finite = torch.isfinite(traces)
        self._grams = grams + _FLOOR * traces[:, None, None] * torch.eye(grams.shape[1]).to(grams)
        self._towers, self._disjoint = towers, disjoint

    def of_pairs(self, rows: Tensor, contrast: Contrast) -> Tensor:
        """Computes an upper bound of each similarity's gradient norm; see `Norms.of_pairs`."""
        others = contrast.candidates.reshape(-1)
        of_anchors = self._halves(contrast.anchors, rows[others])
        of_candidates = self._halves(others, rows[contrast.anchors]).T
        first, second = contrast.towers
        together = torch.hypot if first != second and self._disjoint else torch.add
        return together(of_anchors, of_candidates).unflatten(1, contrast.candidates.shape)

    def of_sums(self, cotangents: Iterator[Tensor]) -> Tensor:
        """Computes an upper bound of each function's gradient norm; see `Norms.of_sums`."""
        return torch.cat([self._of_sums(part) for part in cotangents])

    def _of_sums(self, cotangents: Tensor) -> Tensor:
        weights = cotangents.transpose(0, 1)
        each = ((weights @ self._grams) * weights).sum(2).clamp(min=0).sqrt()
        towers = torch.stack([each[part].sum(0) for part in self._towers.values()])
        return torch.linalg.vector_norm(towers, dim=0) if self._disjoint else towers.sum(0)

    def _halves(self, owners: Tensor, weights: Tensor) -> Tensor:
        """Computes ``|J_r^T w|`` for each of the o owner rows r and each of the k weights w, ``(k, D)``: ``(o, k)`` float64."""
        result = torch.empty(len(owners), len(weights), dtype=torch.float64, device=weights.device)
        step = max(1, _WORKSPACE // weights.numel())
        for start in range(0, len(owners), step):
            grams = self._grams[owners[start : start + step]]
            result[start : start + step] = ((weights @ grams) * weights).sum(2)
        return result.clamp_(min=0).sqrt_()


class ExactNorms:
    """Computes gradient norms from the Jacobians themselves, exactly except for a small margin that covers rounding.

    Args:
        blocks: Parts of each tower's Jacobians. No parameter may serve two towers.
        towers: Rows that each tower embeds.
        device: Device of the embeddings.
    """

    def __init__(self, blocks: dict[str, list[Block]], towers: dict[str, slice], device: torch.device) -> None:
        self._blocks, self._towers = blocks, towers
        self._traces = torch.zeros(max(part.stop for part in towers.values()), dtype=torch.float64, device=device)
        for name, part in towers.items():
            for block in blocks[name]:
                self._traces[part] += _traces(block)
        self.finite = torch.isfinite(self._traces)

    def of_pairs(self, rows: Tensor, contrast: Contrast) -> Tensor:
        """Computes each similarity's gradient norm; see `Norms.of_pairs`."""
        anchors, others = contrast.anchors, contrast.candidates.reshape(-1)
        lost = _CANCELLED * self._traces
        squares = lost[anchors][:, None] + lost[others]
        for name, part in self._towers.items():
            owns = [name == tower for tower in contrast.towers]
            for jacobian in self._slices(name):
                _add_squares(
                    squares,
                    jacobian[anchors - part.start] if owns[0] else None,
                    jacobian[others - part.start] if owns[1] else None,
                    rows[anchors],
                    rows[others],
                )
        return squares.sqrt_().unflatten(1, contrast.candidates.shape)

    def of_sums(self, cotangents: Iterator[Tensor]) -> Tensor:
        """Computes each function's gradient norm; see `Norms.of_sums`."""
        return torch.cat([self._of_sums(part) for part in cotangents])

    def _of_sums(self, cotangents: Tensor) -> Tensor:
        squares = cotangents.square().sum(2) @ (_CANCELLED * self._traces)
        for name, part in self._towers.items():
            weights = cotangents[:, part].flatten(1)
            for jacobian in self._slices(name):
                squares += (weights @ jacobian.flatten(0, 1)).square().sum(1)
        return squares.sqrt_()

    def _slices(self, tower: str) -> Iterator[Tensor]:
        for block in self._blocks[tower]:
            yield from block.slices(_COLUMNS)


def _add_squares(squares: Tensor, of_anchors: Tensor | None, of_others: Tensor | None, anchors: Tensor, others: Tensor) -> None:
    """Adds the contribution of a slice of p parameters to the squared norms of all pairs of n anchors and N candidates.

    Args:
        squares: Squared norms ``(n, N)``, added to in place.
        of_anchors: Jacobians of the anchors, ``(n, D, p)``; ``None`` if the parameters do not serve the anchors.
        of_others: Jacobians of the candidates, ``(N, D, p)``; ``None`` if the parameters do not serve the candidates.
        anchors: Embeddings of the anchors, ``(n, D)``.
        others: Embeddings of the candidates, ``(N, D)``.
    """
    jacobian = of_anchors if of_anchors is not None else of_others
    if jacobian is None:
        return
    if of_others is not None:
        of_others = of_others.transpose(0, 1).flatten(1)
    width = jacobian.shape[2]
    step = max(1, _BLOCK // (len(others) * width))
    for start in range(0, len(anchors), step):
        chunk = slice(start, start + step)
        if of_others is None:
            assert of_anchors is not None  # at least one of the two is given
            gradients = others @ of_anchors[chunk]
        else:
            gradients = (anchors[chunk] @ of_others).view(-1, len(others), width)
            if of_anchors is not None:
                gradients.baddbmm_(others.expand(len(gradients), -1, -1), of_anchors[chunk])
        squares[chunk] += torch.linalg.vector_norm(gradients, dim=2).square_()


def _traces(block: Block) -> Tensor:
    first, *others = (part.square().sum((1, 2)) for part in block.slices(_COLUMNS))
    return sum(others, first)
