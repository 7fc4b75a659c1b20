"""Defines batch clipping, which clips one gradient, that of the whole batch.

Other names: DP-CLIP of Huang et al.; "Naive-DP" of the Logit-DP paper; DP-GCL, equation 7.

All drawn records, at most `max_batch` of them, are contrasted with each other, and the gradient of their mean loss is clipped
to norm C. One record that joins the batch may replace another record if the batch is full, and may change every similarity.
Whatever it changes, the clipped gradient lies in a ball of radius C before and after. So the sum moves by at most **2C**. The
two gradients can be opposite points of this ball, so the bound 2C is tight. The same holds for a unit of several records.
"""

from __future__ import annotations

from dpfed.privacy.method import Method

METHOD = Method(
    name="batch",
    title="batch clipping (DP-CLIP)",
    claim="All drawn records are contrasted, and the gradient of their mean loss is clipped: a record moves it by at most 2C.",
    sensitivity=lambda given: 2 * given.clip_norm,
    whole_batch=True,
    capped=True,
    divisor=lambda given: 1,
    units=True,
    proven_in_floats=True,
    supports_metrics=True,
)
