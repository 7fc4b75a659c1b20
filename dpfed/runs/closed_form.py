"""What a run in closed form (`Method.closed_form`) has in the place of trained towers: heads."""

from __future__ import annotations

from torch import nn

from dpfed.building.images import image_size
from dpfed.config import Config
from dpfed.data.views.record_views import Tokenizer
from dpfed.errors import UserError
from dpfed.models.moment_heads import MomentNoise
from dpfed.models.moment_layout import MomentLayout, dimensions_for
from dpfed.models.moments import MomentHeads, feature_widths, give_heads, keep_towers
from dpfed.privacy.plan import PrivacyPlan


def add_moment_heads(
    model: nn.Module, config: Config, plan: PrivacyPlan, noise_std: float, tokenizer: Tokenizer | None, noise_shares: int = 1
) -> None:
    """Freezes the towers of a model, and puts heads of moments behind them.

    Args:
        model: of `dpfed.models.building.build_model`, on the CPU.
        config: of the run.
        plan: of the run.
        noise_std: of each number of the noisy sums.
        tokenizer: of models that read text.
        noise_shares: how many parties add the noise together, see `PrivacyPlan.noise_of`.

    Raises:
        UserError: for fewer records, or narrower towers, than dimensions.
    """
    # Alike before anything is learnt: views of an image, or towers trained together.
    aligned = config.model.kind != "image-text" or config.model.start is not None
    keep_towers(model, aligned)
    widths = feature_widths(model, image_size(config), tokenizer)
    give_heads(model, moment_heads(plan, widths, aligned, noise_std, noise_shares))


def moment_heads(
    plan: PrivacyPlan, widths: tuple[int, ...], aligned: bool, noise_std: float, noise_shares: int = 1
) -> MomentHeads:
    """Heads of moments for features, wherever these come from.

    Args:
        plan: says how many dimensions they have, or leaves it to N and sigma.
        widths: of the features, image first.
        aligned: whether features of a pair are alike before anything is learnt.
        noise_std: see `add_moment_heads`.
        noise_shares: see `add_moment_heads`.

    Raises:
        UserError: for fewer records, or narrower features, than dimensions.
    """
    given = plan.bounding.options["dimensions"]
    if given > min(*widths, plan.sampling.records):
        raise UserError(
            f"bounding.options.dimensions = {given} is too large for towers of {' and '.join(map(str, widths))} numbers and "
            f"{plan.sampling.records:,} training {plan.promise.protected}s. Lower it, or leave it out. [run-dimensions-large]"
        )
    k = given or dimensions_for(plan.sampling.records, plan.noise.multiplier, widths)
    if aligned and not given:
        k = min(*widths, plan.sampling.records)  # what towers have in common already is not thrown away
    layout = layout_of(plan, k, len(widths), noise_shares)
    return MomentHeads(layout, MomentNoise(plan.sampling.records, noise_std), widths, aligned)


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
