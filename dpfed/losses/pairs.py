"""Defines the base class of losses that compare two views of each record; of more than two views, they compare all pairs."""

from __future__ import annotations

import itertools
from math import inf

import torch
from torch import Tensor

from dpfed.errors import UserError
from dpfed.losses.loss import Loss, refuse_views


class PairLoss(Loss):
    """Base class of losses of two views of each record: `of` computes the loss of one pair of views.

    With more than two views, the loss is the mean over all pairs; with texts, over all pairs of an image view and a text.

    Args:
        options: Options of the loss by name, as the constructor of its class takes them. A run records them (for a class that
            is not dpfed's, only their hash), and cannot be resumed with other values.
    """

    def __init__(self, **options: float | bool) -> None:
        self._options = options
        if type(self).__module__.startswith("dpfed.losses."):  # the names of other losses are chosen by their users
            self.objective = {"name": f"dpfed.losses:{type(self).__name__}", "options": options}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in self._options.items())})"

    def __call__(self, image: Tensor, text: Tensor | None = None) -> Tensor:
        """Computes the loss of one group.

        Args:
            image: Embeddings of the records' image views, ``(S, V, D)``: S records, V views of each, D dimensions.
            text: Embeddings of the W texts of each record, ``(S, W, D)``, for models that read text. Each image view is then
                compared with each text.

        Returns:
            A scalar, the mean over the S records.

        Raises:
            UserError: If the embeddings do not have three dimensions, or there are no texts and only one view of each image.
        """
        refuse_views(type(self).__name__, image, text)
        if text is not None:
            chosen = [(first, second) for first in image.unbind(1) for second in text.unbind(1)]
        else:
            chosen = list(itertools.combinations(image.unbind(1), 2))
        return torch.stack([self.of(first, second) for first, second in chosen]).mean()

    def of(self, first: Tensor, second: Tensor) -> Tensor:
        """Computes the loss of two views of each record.

        Args:
            first: Embedding of one view of each record, ``(S, D)``.
            second: Embedding of another view of each record, ``(S, D)``.

        Returns:
            A scalar, the mean over the S records.
        """
        raise NotImplementedError


def refuse_options(name: str, *, zero: bool, **given: float) -> None:
    """Rejects options that are negative or not finite.

    Args:
        name: Name of the loss.
        zero: Whether the options may be 0.
        given: Options by name.

    Raises:
        UserError: If an option is not a finite number, is negative, or is 0 although `zero` is false; the message names the
            option.
    """
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < inf and (zero or value > 0)):
            raise UserError(
                f"{name}: expected {key} to be a finite number {'of 0 or more' if zero else 'above 0'}, got {value!r}. "
                "[loss-option]"
            )
