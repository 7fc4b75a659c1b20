"""Computes a step's groups in several threads, one for each core."""

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
    """Pool of as many threads as torch would use for one operation, by default one for each core.

    A group is too small to keep several cores busy, so each thread takes its own groups on one core.

    The caller fixes which thread takes which group, and the threads' sums are added up in a fixed order. So the sum has the
    same bits in every run. On devices other than the CPU there is one thread. There is also only one thread if a layer draws
    random numbers, because threads would use torch's generator in no fixed order.

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
        """Calls `work` in one of the threads. There, as in `add`, an operation uses one core, so it computes the same bits."""
        if self._pool is None:
            work()
        else:
            self._pool.submit(work).result()

    def add(self, work: Callable[[int, Tensor], Tensor], into: Tensor) -> Tensor:
        """Adds up a step's gradients in all threads.

        Args:
            work: Function of a thread's number and a flat vector ``(P,)``. It adds the gradients of the thread's g groups to
                the vector, and returns figures of these groups, such as norms, as a tensor ``(..., g)``.
            into: Sum ``(P,)``, which is changed in place.

        Returns:
            The figures of all G groups, ``(..., G)``, in the order of the threads.
        """
        if self.count > 1 and (not self._extra or self._extra[0].dtype != into.dtype):
            self._extra = [torch.empty_like(into) for _ in range(self.count - 1)]
        sums = [into, *(extra.zero_() for extra in self._extra)]
        figures = torch.cat(self.each(lambda k: work(k, sums[k])), dim=-1)
        for extra in self._extra:
            into.add_(extra)
        return figures

    def each(self, work: Callable[[int], T]) -> list[T]:
        """Calls `work` with each thread's number, in that thread, and returns the results in the order of the threads."""
        if self._pool is None:
            return [work(0)]
        return [thread.result() for thread in [self._pool.submit(work, k) for k in range(self.count)]]
