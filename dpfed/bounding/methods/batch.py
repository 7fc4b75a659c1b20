"""Batch clipping (DP-CLIP of Huang et al.; "Naive-DP" of the Logit-DP paper; DP-GCL, equation 7): one clip of one gradient.

All drawn records, at most `max_batch` of them, are contrasted with each other, and the gradient of their mean loss is clipped
to C. Whatever one record does to the batch (it joins, pushes another one out at the cap, changes every similarity), a vector
within a ball of radius C becomes another one within it: the sum moves by at most **2C**. Both ends can be reached, so 2C is
tight. The same holds for a unit of several records.
"""

from __future__ import annotations

from dpfed.privacy.method import Method

METHOD = Method(
    name="batch",
    title="batch clipping (DP-CLIP)",
    claim="All drawn records are contrasted, and the gradient of their mean loss is clipped: a record moves it by 2C.",
    sensitivity=lambda given: 2 * given.clip_norm,
    whole_batch=True,
    capped=True,
    divisor=lambda given: 1,
    units=True,
    proven_in_floats=True,
    supports_metrics=True,
)
