"""Defines group clipping (DP-GCL, algorithm 1): each group's gradient is clipped to norm C, and the results are added up.

Every drawn record joins one of K groups, chosen independently of all others. Two neighbouring data sets differ in one record,
so all their groups are the same except one. The clipped gradient of this group lies in a ball of radius C in both data sets, so
the sum moves by at most **2C** (docs/guarantee.md has the full proof, with units, caps, and several workers).
"""

from __future__ import annotations

from dpfed.privacy.method import Method

METHOD = Method(
    name="group",
    title="group clipping (DP-GCL)",
    claim="Records are contrasted inside small groups, and each group's gradient is clipped: a record changes one group's "
    "gradient, and so moves the sum by at most 2C.",
    sensitivity=lambda given: 2 * given.clip_norm,
    picks_engine=True,
    units=True,
    proven_in_floats=True,
    supports_metrics=True,
)
