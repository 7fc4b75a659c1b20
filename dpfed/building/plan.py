"""Makes the privacy plan of a configuration. This module does not import torch, so a mistake is reported at once."""

from __future__ import annotations

import math

from dpfed.building.method import contrasted, public_parameters
from dpfed.config import Config
from dpfed.privacy import accounting
from dpfed.privacy.method import method_named
from dpfed.privacy.plan import STEPS_IN_CLOSED_FORM, PrivacyPlan
from dpfed.privacy.plan_checks import MOST_RECORDS, require, require_batch, require_epsilon
from dpfed.privacy.plan_parts import Bounding, NoiseScale, PrivateProgress, Promise, Sampling

_AUTOMATIC = 1.0  # C, where every gradient is normalised, or the method has no gradients
_SPREAD = 4.0  # standard deviations of a Poisson batch's size above its mean: batches hardly ever reach this cap


def plan_of(records: int, config: Config) -> PrivacyPlan:
    """Makes the plan of a configuration, with calibrated noise.

    Args:
        records: N, number of training records, or of units where the plan protects units.
        config: Configuration of the run.

    Raises:
        UserError: If the configuration allows no plan for so many records.
    """
    plan = _draft(records, config).calibrated()
    if plan.statistics is not None:
        plan.statistics.refuse_noise_alone(plan.noise_std)
    return plan


def sketch_of(config: Config, at_most: int = MOST_RECORDS) -> PrivacyPlan:
    """Makes a plan before the number of training records is known: N = `at_most`, and the noise is not calibrated yet.

    Args:
        config: Configuration of the run.
        at_most: Largest possible number of training records (or units).

    Raises:
        UserError: If no number of records up to `at_most` makes a possible plan.
    """
    draft = _draft(at_most, config)
    if draft.private and draft.promise.accountant == "pld" and config.privacy.delta is not None:
        same = draft.mechanism.poisson_steps(draft.steps)
        accounting.require_resolution(draft.steps if same is None else same[-1], draft.promise.delta)
    return draft


def describes(config: Config, plan: PrivacyPlan) -> bool:
    """Returns whether a plan has a configuration's mechanism and delta, and enough noise for the configuration's epsilon.

    The noise is not calibrated again, because another version of an accountant may find slightly more or less noise.

    Raises:
        UserError: If the configuration allows no plan for so many records.
    """
    delta, target = plan.promise.delta, plan.promise.target_epsilon
    given = {"epsilon": None, "noise_multiplier": plan.noise.multiplier if plan.private else None, "delta": delta}
    privacy = config.privacy.model_copy(update=given)
    same = plan_of(plan.sampling.records, config.model_copy(update={"privacy": privacy}))
    kept = not plan.private or target is None or plan.epsilon() <= target * (1 + 1e-6)
    return same.replace(target_epsilon=config.privacy.epsilon) == plan and kept and config.privacy.delta in (None, delta)


def _draft(records: int, config: Config) -> PrivacyPlan:
    """Makes a plan whose noise multiplier is either given or still to be calibrated for the target epsilon."""
    privacy, method = config.privacy, method_named(config.bounding.method)
    closed_form = method.closed_form
    noise, promise = _noise(config), _promise(records, config)
    if not closed_form and records >= 2:
        grouped = not method.whole_batch and not method.singleton_groups
        least = 1 if method.singleton_groups else config.objective.loss.least
        require_batch(privacy.batch, records, config.bounding.group_size if grouped else 1, least)
    return PrivacyPlan(
        noise=noise,
        promise=promise,
        sampling=Sampling(records, records if closed_form else privacy.batch, privacy.per_unit),
        bounding=_bounding(config),
        steps=STEPS_IN_CLOSED_FORM if closed_form else privacy.steps,
        progress=_progress(config),
    )


def _noise(config: Config) -> NoiseScale:
    """Returns the noise of a configuration; with `privacy.epsilon`, the multiplier is 1 until it is calibrated."""
    target, sigma = config.privacy.epsilon, config.privacy.noise_multiplier
    private = method_named(config.bounding.method).private
    require(
        private or target is sigma is None,
        "bounding.method = 'none' trains without privacy, so leave privacy.epsilon and privacy.noise_multiplier out",
    )
    require(
        not private or (target is None) != (sigma is None),
        "give exactly one of privacy.epsilon (the noise is calibrated) and privacy.noise_multiplier (epsilon follows)",
    )
    return NoiseScale((1.0 if sigma is None else sigma) if private else 0.0, config.privacy.noise)


def _promise(records: int, config: Config) -> Promise:
    """Returns the privacy promise of a configuration for N training records (or units)."""
    privacy, known = config.privacy, method_named(config.bounding.method).accountants
    if privacy.epsilon is not None:
        require_epsilon("privacy.epsilon", privacy.epsilon)
    delta = accounting.default_delta(records) if privacy.delta is None else privacy.delta
    require(
        0 < delta < 1,
        f"delta must be above 0 and at most 1/N, where N counts the training records (or units), got {delta}; leave it out for "
        "the default, 1/(N ln N)",
    )
    return Promise(delta, privacy.accountant if privacy.accountant in known else known[0], privacy.epsilon, privacy.unit)


def _bounding(config: Config) -> Bounding:
    """Returns how a configuration bounds the influence of a record."""
    given, method, batch = config.bounding, method_named(config.bounding.method), config.privacy.batch
    clipping, max_batch = given.clipping if method.private else "fixed", given.max_batch
    if method.capped and max_batch is None:
        max_batch = batch + math.ceil(_SPREAD * math.sqrt(max(0, min(batch, MOST_RECORDS))))
    return Bounding(
        group_size=1 if method.singleton_groups else given.group_size,
        clip_norm=_AUTOMATIC if clipping == "automatic" or method.closed_form else given.clip_norm,
        method_name=given.method,
        options=public_parameters(config),
        max_group_size=given.max_group_size,
        max_batch=max_batch,
        clipping=clipping,
        stability=given.stability if clipping == "automatic" else 0.0,
    )


def _progress(config: Config) -> PrivateProgress | None:
    """Returns the private training metrics that a configuration releases, with the loss's range; ``None``: it releases none.

    Raises:
        UserError: If neither the loss nor the configuration gives the range of the loss per record.
    """
    if config.diagnostics != "private":
        return None
    given, objective = config.progress, config.objective
    loss_range, known = given.loss_range, objective.loss.range
    if loss_range is None:
        require(
            known is not None,
            f"the usual range of the loss '{objective.name}' is unknown: give progress.loss_range, the value to which "
            "diagnostics = 'private' clips the loss of each record",
        )
        assert known is not None
        loss_range = round(known(objective.loss_options, max(2, contrasted(config))), 3)
    return PrivateProgress(given.share, given.quantile, loss_range, given.phase)
