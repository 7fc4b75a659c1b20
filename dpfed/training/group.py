"""The steps since the last commit: what they owe, and what callbacks have not seen of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpfed.callbacks import StepSummary
from dpfed.privacy.ledger import Ledger, Release

# Puts the state behind some steps on disk, where nobody can read it yet, and returns what makes it the newest one.
Hold = Callable[[Sequence[Release], Sequence[StepSummary]], Callable[[], None]]


class Group:
    """Charges several steps together.

    Args:
        hold: keeps the state of the training.
        every: steps after which a group is full.
        is_end: whether one ends after so many steps of the run, full or not.

    Attributes:
        releases: made and not charged.
        summaries: of the steps since the last commit.
        whole: whether the training is between two steps.
    """

    def __init__(self, hold: Hold, every: int, is_end: Callable[[int], bool] = lambda done: False) -> None:
        self._hold, self._every, self._is_end = hold, every, is_end
        self.releases: list[Release] = []
        self.summaries: list[StepSummary] = []
        self.whole = True
        self._failed: BaseException | None = None

    @property
    def is_full(self) -> bool:
        """Whether no further step should be added."""
        done = self.summaries[-1].done if self.summaries else 0
        return len(self.summaries) >= self._every or self._is_end(done)

    def charge(self, ledger: Ledger) -> None:
        """State on disk, then all releases charged in one write, then the state takes the place of the one before.

        In the middle of a step there is no state to keep: then the steps are charged, and a resumed run computes them again.

        Raises:
            BaseException: what went wrong, also in every further call: nothing may leave any more.
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
