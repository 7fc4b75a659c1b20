"""A step's groups in several threads, one for each core."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from dpfed.bounding.engines.engine import draws
from dpfed.models.parameters import TrainableVector

T = TypeVar("T")


class Threads:
    """Pool of as many threads as cores: a group is too small to keep several cores busy, so each core takes its own groups.

    The caller fixes which thread takes which group, and their sums are added up in order: the sum is the same, bit for bit, in
    every run. There is one thread on devices other than the CPU. There is also only one if a layer draws random numbers:
    threads would take turns at one generator in no fixed order.

    Args:
        model: Model, on its device.
        vector: Trainable parameters of the model.

    Attributes:
        count: Number of threads.
    """

    def __init__(self, model: nn.Module, vector: TrainableVector) -> None:
        random = any(draws(module) for module in model.modules())
        self.count = 1 if random or vector.device.type != "cpu" else torch.get_num_threads()
        self._extra: list[Tensor] = []
        many = self.count > 1
        self._pool = ThreadPoolExecutor(self.count, initializer=torch.set_num_threads, initargs=(1,)) if many else None

    def first(self, work: Callable[[], None]) -> None:
        """Does some work in one thread, with as many cores inside an operation as in a step's work."""
        if self._pool is None:
            work()
        else:
            self._pool.submit(work).result()

    def add(self, work: Callable[[int, Tensor], Tensor], into: Tensor) -> Tensor:
        """Does a step's work.

        Args:
            work: Function that adds the part of thread k to a flat vector ``(P,)``, and returns figures of its groups,
                ``(..., g)``; called for each k.
            into: Sum ``(P,)``, added to in place.

        Returns:
            All figures ``(..., G)``, in the order of the threads.
        """
        if self.count > 1 and (not self._extra or self._extra[0].dtype != into.dtype):
            self._extra = [torch.empty_like(into) for _ in range(self.count - 1)]
        sums = [into, *(extra.zero_() for extra in self._extra)]
        figures = torch.cat(self.each(lambda k: work(k, sums[k])), dim=-1)
        for extra in self._extra:
            into.add_(extra)
        return figures

    def each(self, work: Callable[[int], T]) -> list[T]:
        """Runs the work in each thread, and returns the results in the order of the threads."""
        if self._pool is None:
            return [work(0)]
        return [thread.result() for thread in [self._pool.submit(work, k) for k in range(self.count)]]
