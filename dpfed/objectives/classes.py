"""Classes of the records of a group, for losses that read them: which records share one, and nothing else.

A class's number may depend on which classes other records have: without the only record of one class, all that follow may get
another number. A loss that read such numbers would move in every group with that record. So a loss gets numbers that the group
alone decides (docs/guarantee.md, Labels in a loss).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LABEL = "label"
"""What stands beside the views of records, and beside their embeddings: ``(n, 1, 1)`` int64, -1 where a record has no class."""


def first_of_class(label: Tensor, present: Tensor) -> Tensor:
    """For each record, the place of the first record of its group that has its class; its own where it has none.

    Args:
        label: ``(S, 1, 1)`` int64, numbers of classes, -1 for none.
        present: ``(S,)`` bool, False for padding.

    Returns:
        ``(S,)`` int64, equal where two records share a class.
    """
    import torch

    classes, places = label.flatten(), torch.arange(len(label), device=label.device)
    shared = (classes[:, None] == classes[None]) & (classes >= 0)[None] & present[None] & present[:, None]
    shared = shared | (places[:, None] == places[None])
    return torch.where(shared, places[None], len(label)).amin(1)


def reads_labels(function: Callable[..., Any]) -> bool:
    """Whether a loss of the user's own has a parameter ``label``."""
    try:
        return LABEL in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables do not say
        return False
