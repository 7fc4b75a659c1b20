"""Defines public contrast: every private record is contrasted with public records only, in a group of its own.

Every drawn record forms a group with M records of a public set. The record's key and the step determine these M records. The
group's loss is the record's own contribution: its terms of the contrast, with the record as anchor in both directions; or, for
other losses (such as Barlow Twins), the loss of the group minus the loss of its public records alone. The gradient flows
through all records of the group, public ones included, and is clipped to C. (If it did not flow through the public ones, the
direction that all records have in common would use up the clip norm, and little would be learnt.)

**Lemma.** Neighbours D and D' = D + x: the sum moves by at most **C**. The public set is fixed before training and
holds no record of D'. The group of any record y of D is y itself and public records that y's key selects, with views that are
functions of each record's key; so the group's loss and clipped gradient are the same in D and D'. If x is drawn, D' has one
group more, and the sum one vector more, of norm C at most. If x is not drawn, the sums are equal. Units: a drawn unit makes one
group of its (at most `per_unit`) records and M public ones, so D' has again one clipped gradient more. ∎

The bound is tight: a gradient of norm C or more reaches it. (With group clipping the bound is 2C, because the group exists
with and without x.) The divisor is the expected number of groups, B, which is public; the actual number in a step is private.

A record's influence is bounded for any public set. The user is responsible for not choosing that set by looking at the private
records. The number of groups of a Poisson batch is unbounded; it exceeds 2B + 100 once in 10^60 steps.
"""

from __future__ import annotations

from dpfed.privacy.method import Method

METHOD = Method(
    name="public",
    title="public contrast",
    claim="Every drawn record forms its own group together with public records, and the gradient of the record's part of the "
    "loss is clipped. This gradient depends on no other private record: a record adds one such gradient, and so moves the "
    "sum by at most C.",
    sensitivity=lambda given: given.clip_norm,
    spread=lambda given: 2 * given.batch + 100,  # groups: a Poisson batch is larger once in 10^60
    divisor=lambda given: given.batch,
    singleton_groups=True,
    public_records=True,
    picks_engine=True,
    units=True,
    proven_in_floats=True,
    supports_metrics=True,
    public_parameters=lambda inputs: {"public_records": inputs.public_records},
)
