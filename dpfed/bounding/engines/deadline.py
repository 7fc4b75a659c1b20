"""An end to what an engine may take, in the midst of a pass."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")
_END: ContextVar[float] = ContextVar("end", default=math.inf)


class TooSlow(Exception):
    """The time is over."""


class Deadline(TorchDispatchMode):
    """Once the time is over, raises `TooSlow` before the next of torch's operations in this thread, also in a backward pass.

    Other threads are under it if they do `carried` work.

    Looking at the clock costs some microseconds for each operation. So a pass under a deadline says how slow an engine is at
    most, and not how fast it is.

    Args:
        seconds: from the beginning of the block.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.perf_counter() + seconds

    @staticmethod
    def is_near() -> bool:
        """Whether this thread is in such a block."""
        return math.isfinite(_END.get())

    def __enter__(self) -> Deadline:
        """Begins the block."""
        self._before: Token[float] = _END.set(self._end)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Ends the block."""
        super().__exit__(*error)
        _END.reset(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Carries one operation out."""
        if time.perf_counter() > self._end:
            raise TooSlow
        return func(*args, **(kwargs or {}))


def carried(work: Callable[..., T]) -> Callable[..., T]:
    """The same work for another thread, under the deadline of this one, if there is one."""
    end = _END.get()
    if math.isinf(end):
        return work

    def under(*args: Any) -> T:
        with Deadline(end - time.perf_counter()):
            return work(*args)

    return under
