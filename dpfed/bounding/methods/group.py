"""Group clipping (DP-GCL, algorithm 1): clip each group's gradient to C, add the groups up.

Every drawn record joins one of K groups, chosen independently of all others. Two neighbouring data sets therefore have the same
groups but for one, whose gradient lies in a ball of radius C before and after: the sum moves by at most **2C**
(docs/guarantee.md has the long form, with units, caps, and several owners).
"""

from __future__ import annotations

from dpfed.privacy.method import Method

METHOD = Method(
    name="group",
    title="group clipping (DP-GCL)",
    claim="Records are contrasted inside small groups, and each group's gradient is clipped: a record moves one group, by 2C.",
    sensitivity=lambda given: 2 * given.clip_norm,
    picks_engine=True,
    units=True,
    proven_in_floats=True,
    supports_metrics=True,
)
