"""An end to what an engine may take, in the midst of a pass."""

from __future__ import annotations

import time
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class TooSlow(Exception):
    """The time is over."""


class Deadline(TorchDispatchMode):
    """Once the time is over, raises `TooSlow` before the next of torch's operations in this thread, also in a backward pass.

    Looking at the clock costs some microseconds for each operation. So a pass under a deadline says how slow an engine is at
    most, and not how fast it is.

    Args:
        seconds: from the beginning of the block.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.perf_counter() + seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Carries one operation out."""
        if time.perf_counter() > self._end:
            raise TooSlow
        return func(*args, **(kwargs or {}))
