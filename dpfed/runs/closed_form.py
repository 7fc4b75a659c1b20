"""Makes the heads of a run of private moments (`Method.closed_form`), in closed form from noisy moments; trains no tower."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dpfed.building.images import image_size
from dpfed.building.method import options_of
from dpfed.config import Config
from dpfed.data.views.record_views import Tokenizer
from dpfed.errors import UserError
from dpfed.models.basis import Basis, Side, random_bases
from dpfed.models.moment_heads import FEWEST_IMAGES, MomentNoise
from dpfed.models.moment_layout import MomentLayout, dimensions_for
from dpfed.models.moments import MomentHeads, feature_widths, give_heads, keep_towers, layers_of
from dpfed.privacy.plan import PrivacyPlan


def add_moment_heads(
    model: nn.Module,
    config: Config,
    plan: PrivacyPlan,
    noise_std: float,
    tokenizer: Tokenizer | None,
    noise_parties: int = 1,
    basis: Mapping[Side, Basis] | None = None,
) -> None:
    """Freezes the towers of a model, and appends heads that are computed from noisy moments of the towers' features.

    Args:
        model: Model made by `dpfed.models.building.build_model`, on the CPU.
        config: Configuration of the run.
        plan: Plan of the run.
        noise_std: Standard deviation of the noise on each number of the noisy sums.
        tokenizer: Tokenizer of a model that reads text, else ``None``.
        noise_parties: Number of parties that add the noise together; see `PrivacyPlan.noise_of`.
        basis: Basis of each tower, made of public features; ``None``: random bases.

    Raises:
        UserError: If the basis is for other towers; also see `moment_heads`.
    """
    aligned = config.is_aligned
    keep_towers(model, aligned, options_of(config).layers == "several")
    widths = feature_widths(model, image_size(config), tokenizer)
    if basis is not None and tuple(tower_basis.rows.shape[1] for tower_basis in basis.values()) != widths:
        raise UserError(
            "the public basis was made for other towers than the run's, whose numbers of features are "
            f"{' and '.join(map(str, widths))}. Give the towers that the basis was made for, or start a new run. [basis-towers]"
        )
    give_heads(model, moment_heads(plan, widths, aligned, noise_std, noise_parties, basis, FEWEST_IMAGES))


def said_of_layers(model: nn.Module) -> str:
    """Describes from how many layers of each tower the heads take their features."""
    counts = layers_of(model).items()
    return "the heads get features of " + " and ".join(
        f"{count} layer{'s' * (count > 1)} of the {side} tower" for side, count in counts
    )


def moment_heads(
    plan: PrivacyPlan,
    widths: tuple[int, ...],
    aligned: bool,
    noise_std: float,
    noise_parties: int = 1,
    basis: Mapping[Side, Basis] | None = None,
    fewest: int = 0,
) -> MomentHeads:
    """Makes heads that are computed from noisy moments, for features of any origin.

    Args:
        plan: Plan of the run. If its options leave the number of dimensions open, `dimensions_for` chooses it, except for
            aligned features. For these it is the width if there is one tower and `fewest` is not 0, and otherwise the smaller
            of the smallest width and the number of records.
        widths: Widths of the features, image first.
        aligned: Whether the towers were aligned before the run, so that the features of a pair are alike.
        noise_std: Standard deviation of the noise on each number of the noisy sums.
        noise_parties: Number of parties that add the noise together.
        basis: Basis of each tower, made of public features; ``None``: random bases.
        fewest: Smallest number of records with which the head of a model without a text tower is learnt; see `MomentNoise`.

    Raises:
        UserError: If the number of dimensions that the plan gives exceeds the number of records, a width of the features, or
            the number of rows of a basis.
    """
    given = plan.bounding.options["dimensions"]
    widths = widths if basis is None else tuple(len(tower_basis.rows) for tower_basis in basis.values())
    if given > min(*widths, plan.sampling.records):
        what = "widths of the features" if basis is None else "numbers of rows of the bases"
        raise UserError(
            f"bounding.options.dimensions = {given} exceeds the smallest of the {what} ({' and '.join(map(str, widths))}) and "
            f"the {plan.sampling.records:,} training {plan.promise.protected}s: lower it to "
            f"{min(*widths, plan.sampling.records)}, or leave it out. [run-dimensions-large]"
        )
    k = given or dimensions_for(plan.sampling.records, plan.noise.multiplier, widths, public=basis is not None)
    if aligned and not given:
        k = (
            widths[0] if fewest and len(widths) == 1 else min(*widths, plan.sampling.records)
        )  # all dimensions, so that no feature of aligned towers is lost
    layout = layout_of(plan, k, len(widths), noise_parties)
    bases = (
        random_bases(widths, k, aligned)
        if basis is None
        else {side: tower_basis.first(k) for side, tower_basis in basis.items()}
    )
    return MomentHeads(layout, MomentNoise(plan.sampling.records, noise_std, fewest), bases, aligned)


def layout_of(plan: PrivacyPlan, dimensions: int, towers: int, noise_parties: int = 1) -> MomentLayout:
    """Returns the layout of the two noisy sums that a plan of private moments releases.

    Args:
        plan: Plan of the run.
        dimensions: Number of dimensions that the heads keep.
        towers: Number of towers: 2 for image and text, 1 for images only.
        noise_parties: Number of parties that add the noise together.
    """
    options = plan.bounding.options
    return MomentLayout(
        dimensions,
        towers,
        options["mean_share"],
        options["cross_share"],
        plan.grid_of(noise_parties).radius,
        max(2, options["views"]),
        plan.bounding.bound,
    )
