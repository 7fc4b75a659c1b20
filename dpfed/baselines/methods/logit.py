"""Logit-DP (Kong, Munoz Medina and Ribero): a sum of the similarities' clipped gradients, weighted by the loss's derivatives.

The gradient of a loss of similarities is ``sum over pairs of (dl/ds) grad s``. Every ``grad s`` is clipped to C; the weights
``dl/ds`` are not clipped, but one record can change only few of these weights by much. **Sensitivity G C**, where G bounds the
sum of the absolute changes of all pairs' weights; `dpfed.baselines.whole_batch.pair_options` has the proof:

- contrastive loss at temperature tau, m candidates per record, at most b records, ``E = exp(2 / tau)``:
  ``(4 x + 2 (b - 1) r) / tau`` for each direction, where ``x = (b-1) m E / ((b-1) m E + 1)`` bounds the softmax weight of all
  candidates of other records for an anchor, and ``r = m E / (m E + (b-2) m + 1)`` that of one other record's candidates;
- spread-out regulariser: 8 for each direction, times its weight.

Both constants are for a batch at the cap, where an additional record displaces another one; below the cap a record changes
less. At tau = 1 the contrastive constant tends to ``4 + 2 e^2`` as b grows. At tau = 0.1 it is about ``(2b + 2) / tau`` for any
batch that fits into memory: no better than clipping every record's gradient.
"""

from __future__ import annotations

from typing import Any

from dpfed.baselines.whole_batch.pair_options import LogitOptions, contrastive_change, refuse_unbounded, spread_out_change
from dpfed.privacy.method import Method, MethodInputs
from dpfed.privacy.parameters import MechanismParameters


def _numbers(inputs: MethodInputs) -> dict[str, Any]:
    refuse_unbounded(inputs)
    options: LogitOptions = inputs.options
    return {
        "temperature": inputs.loss_options.temperature,
        "candidates": 1 + inputs.loss_options.augmentations,
        "directions": 1 if options.one_sided else 2,
        "spread_out": options.spread_out,
    }


def _sensitivity(given: MechanismParameters) -> float:
    options = given.options
    change = contrastive_change(given.cap, options["temperature"], options["candidates"])
    change += options["spread_out"] * spread_out_change()
    return options["directions"] * change * given.clip_norm


def _spread(given: MechanismParameters) -> float:
    """Returns an upper bound on the norm of the sum, divided by the sensitivity.

    In absolute value, an anchor's weights add up to at most 2 / tau, and those of its regulariser to at most 2.
    """
    options = given.options
    weights = 2 / options["temperature"] + 2 * options["spread_out"]
    longest = given.cap * options["directions"] * weights * given.clip_norm
    return longest / _sensitivity(given)


METHOD = Method(
    name="logit",
    title="similarity clipping (Logit-DP)",
    claim="All drawn records are contrasted, and the gradient of each similarity is clipped to C. A record moves the "
    "weighted sum of these gradients by at most G C. G is the most by which a record can change the weights (docs/methods.md).",
    sensitivity=_sensitivity,
    spread=_spread,
    whole_batch=True,
    capped=True,
    divisor=lambda given: given.batch,
    options={"infonce": LogitOptions},
    public_parameters=_numbers,
)
