"""What a run in closed form (`Method.closed_form`) has in the place of trained towers: heads."""

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
from dpfed.models.moments import MomentHeads, feature_widths, give_heads, keep_towers
from dpfed.privacy.plan import PrivacyPlan


def add_moment_heads(
    model: nn.Module,
    config: Config,
    plan: PrivacyPlan,
    noise_std: float,
    tokenizer: Tokenizer | None,
    noise_shares: int = 1,
    basis: Mapping[Side, Basis] | None = None,
) -> None:
    """Freezes the towers of a model, and puts heads of moments behind them.

    Args:
        model: of `dpfed.models.building.build_model`, on the CPU.
        config: of the run.
        plan: of the run.
        noise_std: of each number of the noisy sums.
        tokenizer: of models that read text.
        noise_shares: how many parties add the noise together, see `PrivacyPlan.noise_of`.
        basis: of each tower, of public features; ``None``: random ones.

    Raises:
        UserError: for fewer records, or narrower towers, than dimensions.
    """
    aligned = config.is_aligned
    keep_towers(model, aligned, options_of(config).layers == "several")
    widths = feature_widths(model, image_size(config), tokenizer)
    if basis is not None and tuple(own.rows.shape[1] for own in basis.values()) != widths:
        raise UserError(
            f"the public basis is one of other towers: these have {' and '.join(map(str, widths))} numbers. [basis-towers]"
        )
    give_heads(model, moment_heads(plan, widths, aligned, noise_std, noise_shares, basis, FEWEST_IMAGES))


def moment_heads(
    plan: PrivacyPlan,
    widths: tuple[int, ...],
    aligned: bool,
    noise_std: float,
    noise_shares: int = 1,
    basis: Mapping[Side, Basis] | None = None,
    fewest: int = 0,
) -> MomentHeads:
    """Heads of moments for features, wherever these come from.

    Args:
        plan: says how many dimensions they have, or leaves it to N and sigma.
        widths: of the features, image first.
        aligned: whether features of a pair are alike before anything is learnt.
        noise_std: see `add_moment_heads`.
        noise_shares: see `add_moment_heads`.
        basis: of each tower, of public features; ``None``: random ones.
        fewest: see `MomentNoise`.

    Raises:
        UserError: for fewer records, or narrower features, than dimensions.
    """
    given = plan.bounding.options["dimensions"]
    widths = widths if basis is None else tuple(len(own.rows) for own in basis.values())
    if given > min(*widths, plan.sampling.records):
        raise UserError(
            f"bounding.options.dimensions = {given} is too large for towers of {' and '.join(map(str, widths))} numbers and "
            f"{plan.sampling.records:,} training {plan.promise.protected}s. Lower it, or leave it out. [run-dimensions-large]"
        )
    k = given or dimensions_for(plan.sampling.records, plan.noise.multiplier, widths, public=basis is not None)
    if aligned and not given:
        k = (
            widths[0] if fewest and len(widths) == 1 else min(*widths, plan.sampling.records)
        )  # what is alike already is not thrown away
    layout = layout_of(plan, k, len(widths), noise_shares)
    bases = random_bases(widths, k, aligned) if basis is None else {side: own.first(k) for side, own in basis.items()}
    return MomentHeads(layout, MomentNoise(plan.sampling.records, noise_std, fewest), bases, aligned)


def layout_of(plan: PrivacyPlan, dimensions: int, towers: int, noise_shares: int = 1) -> MomentLayout:
    """How a plan's two sums are laid out.

    Args:
        plan: of the run.
        dimensions: k.
        towers: 2 for image and text, 1 for images alone.
        noise_shares: see `add_moment_heads`.
    """
    options = plan.bounding.options
    return MomentLayout(
        dimensions,
        towers,
        options["mean_share"],
        options["cross_share"],
        plan.grid_of(noise_shares).radius,
        max(2, options["views"]),
        plan.bounding.bound,
    )
