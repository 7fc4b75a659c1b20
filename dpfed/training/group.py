"""Holds the steps since the last commit: their uncharged releases, and their summaries, perhaps not shown to callbacks yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpfed.callbacks import StepSummary
from dpfed.privacy.ledger import Ledger, Release

# Writes the state after some steps to disk, encrypted, and returns a function that makes it the newest state.
Hold = Callable[[Sequence[Release], Sequence[StepSummary]], Callable[[], None]]


class Group:
    """Several steps that are charged in one write.

    Args:
        hold: Function that writes the state of the training to disk, given the releases and summaries of the group. It returns
            a function that makes this state the newest one.
        every: Number of steps after which a group is full.
        is_end: Function of the number of finished steps of the run; it returns whether the group ends after so many steps even
            if it is not full.

    Attributes:
        releases: Releases that were made and are not charged yet.
        summaries: Summaries of the steps since the last commit.
        whole: Whether the training is between two steps, so that it has a state to write.
    """

    def __init__(self, hold: Hold, every: int, is_end: Callable[[int], bool] = lambda done: False) -> None:
        self._hold, self._every, self._is_end = hold, every, is_end
        self.releases: list[Release] = []
        self.summaries: list[StepSummary] = []
        self.whole = True
        self._failed: BaseException | None = None

    @property
    def is_full(self) -> bool:
        """Returns whether the group must be charged before another step is added."""
        done = self.summaries[-1].done if self.summaries else 0
        return len(self.summaries) >= self._every or self._is_end(done)

    def charge(self, ledger: Ledger) -> None:
        """Writes the state to disk, then charges all releases in one write, then replaces the previous state.

        In the middle of a step there is no state to write. Then the steps are only charged; a resumed run computes them again.

        Raises:
            BaseException: Any failure of writing or charging. Every further call raises it again: nothing may leave the process
                any more.
        """
        if self._failed is not None:
            raise self._failed
        try:
            if self.releases:
                name = self._hold(tuple(self.releases), tuple(self.summaries)) if self.whole else None
                ledger.charge(*self.releases)
                if name is not None:
                    name()
        except BaseException as error:
            self._failed = error
            raise
        self.releases.clear()
        self.summaries.clear()
