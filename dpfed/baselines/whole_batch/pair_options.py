"""Options and requirements of the methods that reweight similarities, `sample` and `logit`, and the constants of Logit-DP.

The constants bound how much one record can change the weights of the similarities. Their proof:

A batch has n <= b records. Each has an anchor and m candidates, all unit vectors; ``s_ijv`` is the cosine of anchor i and
candidate v of record j, and candidate 0 of record i is the positive of anchor i. The weights w are the loss's derivatives
with respect to the cosines. Every constant bounds the sum of their absolute changes, for one direction of the contrast, over
all pairs of batches that neighbouring data sets can give. The gradients that the weights multiply depend on two records alone
and have norm C at most, so the sum of clipped gradients moves by at most C times the constant; the weight of a pair that is in
only one of the batches changes by its full value.

**Batches of neighbours**, for fixed draws of all other records: they are equal; or one batch has an additional record, n - 1
becoming n <= b; or the new record x replaces another record y, and both batches have size b.

**Contrastive loss.** With ``p_ijv`` the softmax of ``s_ijv / tau`` over the positive of anchor i and all candidates of
others, ``w_ijv = (p_ijv - [own positive]) / tau``. Cosines lie in [-1, 1], so no two terms of a softmax differ by more than
the factor ``E = exp(2 / tau)``. For an anchor, the softmax weights of all candidates of others add up to at most ``x = (b-1) m
E / ((b-1) m E + 1)``, those of one other record's candidates to at most ``r = m E / (m E + (b-2) m + 1)``. x and (b-1) r grow
with b, so bounds at b cover smaller batches.

- *An additional record.* The new anchor: ``2 (1 - p_nn0) / tau <= 2 x / tau``. Each other anchor, for which the new candidates
  have softmax weight r_i: older weights shrink by ``r_i / tau`` together, the new ones are ``r_i / tau``. In all at most ``(2 x
  + 2 (n-1) r) / tau``.
- *A replaced record.* The anchors of x and y: ``2 x / tau`` each. Each other anchor, for which y's candidates have softmax
  weight r_i in one batch and x's have r_i' in the other: without either, the older ones have weights q_ijv, which add up to 1;
  with them ``q_ijv (1 - r_i)`` and ``q_ijv (1 - r_i')``. They change by ``|r_i - r_i'| / tau`` together, the new ones add
  ``(r_i + r_i') / tau``: together ``2 max(r_i, r_i') / tau <= 2 r / tau``. In all ``G = (4 x + 2 (b-1) r) / tau``. The triangle
  inequality would give more.

**Spread-out regulariser**: the mean squared cosine with others' candidates, with derivatives ``2 s_ijv / ((n-1) m)``. An
additional record: 2 for the new anchor, 2 for the new candidates, and older ones change by ``2 / ((n-2)(n-1) m)`` each, 2
together: 6. A replaced record: 2 for each of two anchors, 2 for each of two records' candidates, nothing for the rest: 8.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from dpfed.errors import UserError
from dpfed.privacy.method import MethodInputs
from dpfed.schema.section import Section


class PairOptions(Section):
    """Keys of the section ``[bounding.options]`` for the method `sample`."""

    norms: Literal["auto", "exact", "bound"] = Field(
        "auto",
        description="norms to clip by; 'exact': the norms themselves; 'bound': upper bounds by the triangle inequality; "
        "'auto': exact norms if the towers share no trained parameter and a full batch needs little memory and work, else "
        "bounds",
    )


class LogitOptions(PairOptions):
    """Keys of the section ``[bounding.options]`` for the method `logit`."""

    one_sided: bool = Field(
        False, description="only the first views (with captions, the images) are anchors, as in the paper: half the sensitivity"
    )
    spread_out: float = Field(0.0, ge=0, description="weight of the spread-out regulariser")


def refuse_unbounded(inputs: MethodInputs) -> None:
    """Refuses a learnt temperature, whose gradient these methods do not bound, and a precision other than fp32.

    Args:
        inputs: Choices of the run.

    Raises:
        UserError: If the temperature is learnt; or if the precision is not fp32, in which case norms and gradients would differ
            too much.
    """
    method = inputs.method
    if inputs.loss_options.learn_temperature:
        raise UserError(
            f"bounding.method = '{method}' bounds gradients of cosines, but not the gradient of a learnt temperature: set "
            "objective.learn_temperature = false. [baseline-temperature]"
        )
    if inputs.precision != "fp32":
        raise UserError(
            f"bounding.method = '{method}' computes norms apart from gradients, and in {inputs.precision} the two "
            "differ too much: set training.precision = 'fp32'. [baseline-precision]"
        )


def contrastive_change(batch: int, temperature: float, candidates: int = 1) -> float:
    """Returns G, Logit-DP's constant, for InfoNCE in one direction of the contrast, such as with images as anchors.

    G bounds how much one record can change the derivatives of the loss with respect to all cosines: the sum of the absolute
    changes over all pairs, in batches of up to b records. The module has the proof.

    Args:
        batch: b, the largest number of records in a batch, at least 2.
        temperature: tau; the logits lie in [-1/tau, 1/tau].
        candidates: m, the number of candidates of each record. An anchor is contrasted with the first candidate of its own
            record, and with all candidates of other records.

    Example:
        >>> round(contrastive_change(1_000, temperature=1.0), 2)
        18.67
    """
    of_others, of_one = _others_share(batch, temperature, candidates), _one_share(batch, temperature, candidates)
    return (4 * of_others + 2 * (batch - 1) * of_one) / temperature


def contrastive_change_below_cap(batch: int, temperature: float, candidates: int = 1) -> float:
    """Returns a smaller constant than `contrastive_change`, for a record that joins b - 1 others and displaces none.

    Lemma 4.5 of the Logit-DP paper states a smaller constant for one candidate at temperature 1,
    ``2 (1 + (b-2) e^2 / (e^2 + b-1))``, which does not hold: its proof assumes that the new
    record's positive has the same softmax weight for the new anchor as the new record's candidate has for each other anchor.

    Args:
        batch: b, the number of records of the larger batch, at least 2.
        temperature: tau.
        candidates: m, the number of candidates of each record.
    """
    of_others, of_one = _others_share(batch, temperature, candidates), _one_share(batch, temperature, candidates)
    return (2 * of_others + 2 * (batch - 1) * of_one) / temperature


def spread_out_change() -> float:
    """Returns the constant of the spread-out regulariser of weight 1, the same for batches of any size.

    It bounds how much one record can change the derivatives of the regulariser with respect to all cosines, as
    `contrastive_change` does for InfoNCE.
    """
    return 8.0


def _others_share(batch: int, temperature: float, candidates: int) -> float:
    """Returns x, the largest softmax weight of all candidates of other records together."""
    return 1 / (1 + math.exp(-2 / temperature) / ((batch - 1) * candidates))


def _one_share(batch: int, temperature: float, candidates: int) -> float:
    """Returns r, the largest softmax weight of the candidates of one other record together."""
    return 1 / (1 + math.exp(-2 / temperature) * ((batch - 2) * candidates + 1) / candidates)
