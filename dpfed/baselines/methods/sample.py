"""Per-record clipping of a batch-wide InfoNCE loss (DP-GCL, equation 6): DP-SGD on a loss that is not a sum over records.

The loss is a sum over anchors; ``l_i`` is the part of record i (both directions), and the gradient of every ``l_i`` is clipped
to C. But ``l_i`` contrasts i with all records of the batch, so every clipped gradient depends on every record.

**Sensitivity 2bC**, b = `max_batch`. Let D' be D with one additional record x, and fix all other draws.

- The batch of D has n < b records: that of D' also has x. Each of the n clipped gradients moves within a ball of radius C,
  by up to 2C, and x adds one of its own, up to C: (2n + 1)C, at most (2b - 1)C.
- The batch of D has b records: x takes no part, and nothing changes, or x displaces one record. The gradients of the b - 1
  records that stay move by up to 2C each; one gradient is removed and one added, up to C each: 2(b - 1)C + 2C = 2bC.

The second case is the larger one, and it is tight: one hard negative for all anchors, in the place of another one, can reverse
every gradient at once (as in `tests/baselines/whole_batch/test_whole_batch_sensitivity.py`). The paper states (2B + 1)C for a
batch of B records that becomes one of B + 1. Poisson batches have no fixed size, so a hard cap replaces B.
"""

from __future__ import annotations

from typing import Any

from dpfed.baselines.whole_batch.pair_options import PairOptions, refuse_unbounded
from dpfed.privacy.method import Method, MethodInputs


def _numbers(inputs: MethodInputs) -> dict[str, Any]:
    refuse_unbounded(inputs)
    return {}  # how norms are computed is not part of the promise


METHOD = Method(
    name="sample",
    title="per-record clipping (DP-SGD)",
    claim="All drawn records, at most b, are contrasted, and the gradient of each one's loss is clipped: a record changes all "
    "of these gradients, and moves their sum by at most 2bC.",
    sensitivity=lambda given: 2 * given.cap * given.clip_norm,
    spread=lambda given: 1 / 2,
    whole_batch=True,
    capped=True,
    divisor=lambda given: given.batch,
    options={"infonce": PairOptions},
    public_parameters=_numbers,
)
