"""How soon Flower tries again to fetch what is not there yet. Its own waits are a large part of a round of 45 MB.

A message is announced before its objects are uploaded. Whoever fetches one too early waits 1 second, then 2, 4 and 8, each time
plus or minus a fifth, and every long message is fetched too early. Flower 1.41 has no setting for that.
"""

from __future__ import annotations

from flwr.supercore.inflatable import inflatable_utils

_FIRST, _LONGEST = 0.05, 0.4  # seconds


def shorten_fetching() -> None:
    """Makes this process try again sooner; it gives up as late as before, after two hours, and not after a number of tries."""
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = function.__kwdefaults__
        if defaults is None:
            raise TypeError(f"{function.__name__} of this version of Flower has no pauses to set")
        defaults.update(initial_backoff=_FIRST, backoff_cap=_LONGEST, max_tries_per_object=None)
