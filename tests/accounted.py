"""Epsilons of dp_accounting, kept for a session: its search for one promise's noise takes longer than a small run.

What is kept is a function of the library's own event alone, so a mechanism that is broken on purpose has another one.
The library computes one step's curve anew for every number of steps; here a process computes it once.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from dpfed.privacy import accounting

FOLDER = "DPFED_TESTS_ACCOUNTED"  # variable: where the processes of a session share them
_fresh, _known = accounting._fresh, {}


class Kept:
    """An accountant of one event."""

    def __init__(self, *made_of: object) -> None:
        self._made_of = made_of

    @property
    def ledger(self) -> object:
        """The library's search asks whether it got an accountant that has accounted for nothing yet."""
        from dp_accounting import NoOpDpEvent

        return NoOpDpEvent()

    def compose(self, event: object) -> Kept:
        self._event = event
        return self

    def get_epsilon(self, delta: float) -> float:
        accountant, mechanism, *interval = self._made_of
        key = repr((accountant, mechanism.sampler.relation, interval, self._event, delta))
        if key not in _known:
            _known[key] = self._shared(key, delta)
        return _known[key]

    def _shared(self, key: str, delta: float) -> float:
        folder = os.environ.get(FOLDER)
        place = Path(folder or "", hashlib.sha256(key.encode()).hexdigest())
        if folder and place.exists():
            return float.fromhex(place.read_text())
        _keep_curves()
        epsilon = float(_fresh(*self._made_of).compose(self._event).get_epsilon(delta))
        if folder:
            draft = place.with_suffix(f".{os.getpid()}")
            draft.write_text(epsilon.hex())
            draft.replace(place)
        return epsilon


@functools.cache
def _keep_curves() -> None:
    """One step's Rényi curve and loss distribution, from its rate and its noise: from now on each is computed once."""
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.rdp import rdp_privacy_accountant

    curve = functools.cache(rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian)
    rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian = lambda q, noise_multiplier, orders: curve(
        q, noise_multiplier, tuple(orders)
    )
    kept = functools.lru_cache(64)(privacy_loss_distribution.from_gaussian_mechanism)
    privacy_loss_distribution.from_gaussian_mechanism = kept


def keep() -> None:
    """From now on, in this process."""
    accounting._fresh = Kept
