"""Defines training without privacy: the same steps as with group clipping, but nothing is clipped and no noise is added.

This method is a reference for comparison. It also serves to train weights on public data, from which a private run starts.
"""

from __future__ import annotations

import math

from dpfed.privacy.method import Method

METHOD = Method(
    name="none",
    title="no privacy",
    claim="Nothing is clipped and no noise is added: nothing is promised.",
    sensitivity=lambda given: math.inf,
    spread=lambda given: 0.0,
    picks_engine=True,
    units=True,
    private=False,
)
