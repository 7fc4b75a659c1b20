"""Tells a loss which records of a group share a class, and nothing else about their labels.

The number of a class may depend on other records: if the only record of a class is removed, the classes after it may be
renumbered. A loss that read these numbers could then change in every group. So a loss gets numbers that depend on its group
alone (docs/guarantee.md, Labels in a loss).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LABEL = "label"
"""Key of the classes in a dictionary of views: ``(n, 1, 1)`` int64, -1 for a record without a class.

A loss gets the positions that `first_of_class` returns, under the same key in the dictionary of embeddings.
"""


def first_of_class(label: Tensor, present: Tensor) -> Tensor:
    """Returns, for each record, the position of the first record of the same class.

    For a record without a class, and for padding, it is the record's own position.

    Args:
        label: Number of each record's class, ``(S, 1, 1)`` int64; -1: the record has no class.
        present: Mask ``(S,)`` bool, False for padding.

    Returns:
        Positions ``(S,)`` int64, equal where two records share a class.
    """
    import torch

    classes, places = label.flatten(), torch.arange(len(label), device=label.device)
    shared = (classes[:, None] == classes[None]) & (classes >= 0)[None] & present[None] & present[:, None]
    shared = shared | (places[:, None] == places[None])
    return torch.where(shared, places[None], len(label)).amin(1)


def reads_labels(function: Callable[..., Any]) -> bool:
    """Returns whether a user-defined loss has a parameter ``label``."""
    try:
        return LABEL in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return False
