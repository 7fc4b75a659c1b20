"""DPCL as published (Li et al. 2022), for comparison only: **not sound**.

Each step samples B records without replacement, releases a noisy similarity matrix (SimCLR) or noisy means and variances
(Barlow Twins), clips every view's gradient to C and adds the clipped gradients up. The paper states that replacing one record
then moves the sum by at most 4C (2C for each of its two views), because the other views' gradients do not change once the noisy
statistics are fixed. They do change: they contain the replaced record's clean embedding
(`dpfed.baselines.noisy_statistics.published_dpcl`). Every one of the 2B clipped gradients can reverse its direction, so the sum
can move by up to 4BC. `METHOD` states the paper's sensitivity, 4C, and the paper's epsilon: every release has noise multiplier
sigma, and the Renyi epsilons of the releases, each for sampling without replacement (Wang et al. 2019), add up.
"""

from __future__ import annotations

from typing import Any

from dpfed.baselines.methods.released import refuse_augmentations
from dpfed.privacy.mechanism import Mechanism
from dpfed.privacy.method import Method, MethodInputs
from dpfed.privacy.parameters import MechanismParameters
from dpfed.privacy.samplers import FixedSizeSampler
from dpfed.schema.section import NoOptions

# Number of noisy releases in a step: the gradient, and the similarities, or the mean and the variance of each view.
_RELEASES = {"infonce": 2, "barlow_twins": 5}


def _numbers(inputs: MethodInputs) -> dict[str, Any]:
    refuse_augmentations(inputs)
    return {"releases": _RELEASES[inputs.loss]}


def _fixed_size(given: MechanismParameters) -> Mechanism:
    return Mechanism(FixedSizeSampler(given.records, given.batch), given.noise_multiplier, given.options["releases"])


METHOD = Method(
    name="dpcl",
    title="DPCL as published (unsound)",
    claim="Similarities, or means and variances, get noise; each view's gradient is clipped. The published claim is that the "
    "sum moves by 4C when one record is replaced; in fact every view's gradient may change.",
    sensitivity=lambda given: 4 * given.clip_norm,
    spread=lambda given: given.batch / 2,
    sound=False,
    whole_batch=True,
    divisor=lambda given: given.batch,
    options=dict.fromkeys(_RELEASES, NoOptions),
    public_parameters=_numbers,
    accountants=("rdp",),
    mechanism=_fixed_size,
)
