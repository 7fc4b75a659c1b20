"""Derives from a configuration what its bounding method needs.

These are the method's options, its public numbers in the privacy plan, the loss of a group, and the number of records that are
contrasted with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpfed import discovery
from dpfed.config import Config
from dpfed.errors import UserError
from dpfed.objectives import GroupLoss
from dpfed.objectives.own import OwnLoss
from dpfed.privacy.method import MethodInputs, method_named

if TYPE_CHECKING:
    from torch import Tensor


def options_of(config: Config) -> Any:
    """Returns the checked ``[bounding.options]`` of a configuration; see `Method.checked`.

    Raises:
        UserError: If the method does not support the loss, has no such option, or does not allow a value.
    """
    return method_named(config.bounding.method).checked(config.objective.name, config.bounding.options)


def public_parameters(config: Config) -> dict[str, Any]:
    """Returns the method's part of a plan: its public numbers, by their names.

    Raises:
        UserError: If the method does not support the loss, an option or another setting, or the configuration lacks the
            pretrained towers or the public store that the method needs.
    """
    method, objective, options = method_named(config.bounding.method), config.objective, options_of(config)
    if method.closed_form:
        _refuse_trained_towers(config)
        _refuse_untrained_weights(config)
        if config.has_public_basis:
            _refuse_no_public_store(config, "bounding.options.basis = 'store' makes a basis of public records")
    if method.public_records:
        _refuse_no_public_store(config, "bounding.method = 'public' contrasts every record with public ones")
    inputs = MethodInputs(
        method=method.name,
        options=options,
        loss=objective.name,
        loss_options=objective.loss_options,
        precision=config.training.precision,
        reads_text=config.model.reads_text,
        public_records=config.public.records,
        aligned=config.is_aligned,
    )
    return method.public_parameters(inputs)


def contrasted(config: Config) -> int:
    """Returns the number of records that are contrasted with each other; see `Method.contrasted`."""
    method = method_named(config.bounding.method)
    return method.contrasted(config.bounding.group_size, config.privacy.batch, config.public.records)


def group_loss(config: Config, given: Callable[..., Tensor] | None = None) -> GroupLoss:
    """Returns the loss of one group.

    Args:
        config: Configuration, which names the loss.
        given: The user's own loss, in place of the configuration's; ``None``: the configuration's.

    Raises:
        UserError: If the configuration names a loss as ``package.module:object``, and the object does not exist, or the call of
            the object fails.
    """
    if given is not None:
        return OwnLoss(given)
    if config.objective.is_own:
        return OwnLoss(discovery.object_named(config.objective.name, "objective.name", config.objective.options))
    public = config.public
    joined = (public.records, public.centring) if method_named(config.bounding.method).public_records else ()
    return config.objective.group_loss(*joined)


def _refuse_trained_towers(config: Config) -> None:
    adaptation = config.adaptation
    if adaptation.image not in ("auto", "frozen"):
        raise UserError(
            f"bounding.method = 'moments' trains no tower, but adaptation.image = '{adaptation.image}' trains the image tower: "
            "set it to 'frozen', or leave it out. [moments-adaptation]"
        )
    if config.training.precision != "fp32":
        raise UserError("bounding.method = 'moments' computes in float32: set training.precision = 'fp32'. [moments-fp32]")


def _refuse_untrained_weights(config: Config) -> None:
    """Refuses towers with random weights: the run would release moments of meaningless features."""
    model = config.model
    brings_weights = (model.architecture or "").startswith("local-dir:")
    if model.start is None and model.weights is None and not brings_weights:
        raise UserError(
            "bounding.method = 'moments' needs a pretrained image tower, but this one has random weights: set "
            "model.weights (open_clip, timm, torchvision) or model.start. [moments-image-tower]"
        )
    if model.kind == "image-text" and model.start is None and model.pretrained_text is None:
        raise UserError(
            "bounding.method = 'moments' needs a pretrained text tower: set model.text = "
            "'sentence-transformers/NAME' or a folder, or model.start. [moments-text-tower]"
        )


def _refuse_no_public_store(config: Config, why: str) -> None:
    if config.public.source == "store" and config.public.path is None:
        raise UserError(
            f"{why}: give public.path, a record store that was imported with `dpfed data import --public`, or set "
            f"{'bounding.options.basis' if config.has_public_basis else 'public.source'} = "
            f"'{'generated' if config.has_public_basis else 'shapes'}'. [bounding-public-path]"
        )
