"""Linear heads on frozen towers, computed from released moments (``bounding.method = "moments"``).

A model with these heads keeps its towers; towers that were trained together also keep their projections (`keep_towers`). The
head of a tower maps the tower's features to k dimensions by a public basis (`dpfed.models.basis`), subtracts a released centre,
and multiplies by a matrix. In training the only parameter is the vector of released moments; the heads are computed from it. A
published model has the heads, but not the moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.models.basis import SIDES, Basis, Side, projected
from dpfed.models.contract import method_of
from dpfed.models.contrastive import SimCLRModel, TwoTowerModel
from dpfed.models.moment_heads import MomentNoise, centres, heads
from dpfed.models.moment_layout import MomentLayout
from dpfed.models.text_tower import FrozenTextTower, TextTower
from dpfed.models.timm_encoders import TimmEncoder
from dpfed.models.towers import ClipModel

ATTRIBUTE = "moments"  # name of the model's attribute that owns its heads


class Head(nn.Module):
    """Head that maps the features of a tower to embeddings.

    Args:
        basis: Basis of the tower. The head keeps its rows as ``projection`` and, if the basis has a centre, that centre as
            ``origin``.
        centre: Released mean of the tower, ``(k,)``. It is subtracted after features were projected onto the basis and scaled
            to unit length.
        matrix: Linear map, ``(k, D)``.
    """

    projection: Tensor
    centre: Tensor
    matrix: Tensor

    def __init__(self, basis: Basis, centre: Tensor, matrix: Tensor) -> None:
        super().__init__()
        for name, value in {"projection": basis.rows, "centre": centre, "matrix": matrix}.items():
            self.register_buffer(name, value)
        if basis.centre is not None:
            self.register_buffer("origin", basis.centre)

    @property
    def basis(self) -> Basis:
        """Basis of the tower."""
        return Basis(self.projection, self._buffers.get("origin"))

    def forward(self, features: Tensor) -> Tensor:
        """Maps features ``(..., F)`` to embeddings ``(..., D)``, not of unit length."""
        return (projected(features, self.projection, self._buffers.get("origin")) - self.centre) @ self.matrix


class PublishedHeads(nn.Module):
    """Holds the heads of a model that was loaded from a folder.

    Args:
        tensors: Tensors of the heads, as `published_heads` returns them.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for side in dict.fromkeys(name.partition(".")[0] for name in tensors):
            projection, centre, matrix = (tensors[f"{side}.{part}"] for part in ("projection", "centre", "matrix"))
            self.add_module(side, Head(Basis(projection, tensors.get(f"{side}.origin")), centre, matrix))

    def head(self, side: Side) -> Head:
        """Returns the head of a tower."""
        head = self.get_submodule(side)
        assert isinstance(head, Head)
        return head


class MomentHeads(nn.Module):
    """Holds the released moments, and computes the heads from them.

    Args:
        layout: Layout of the release.
        noise: Noise of the release.
        bases: Bases of the towers, image first, each with as many rows as `layout` has dimensions, k.
        aligned: Whether the towers were aligned before the run, so that the features of a pair are alike.

    Attributes:
        released: Noisy averages over records, ``(numel,)``; 0 until they are released.

    Raises:
        ValueError: If a basis does not have k rows.
    """

    def __init__(self, layout: MomentLayout, noise: MomentNoise, bases: Mapping[Side, Basis], aligned: bool) -> None:
        super().__init__()
        self.layout, self.noise, self.aligned = layout, noise, aligned
        self.released = nn.Parameter(torch.zeros(layout.numel))
        for side, basis in bases.items():
            if len(basis.rows) != layout.dimensions:
                raise ValueError(f"the {side} basis has {len(basis.rows)} rows; the layout needs k = {layout.dimensions}")
            self.register_buffer(f"{side}_projection", basis.rows)
            if basis.centre is not None:
                self.register_buffer(f"{side}_origin", basis.centre)
        self._made: tuple[Tensor, dict[Side, Head]] | None = None

    def basis(self, side: Side) -> Basis:
        """Returns the basis of a tower."""
        return Basis(self.get_buffer(f"{side}_projection"), self._buffers.get(f"{side}_origin"))

    @torch.no_grad()
    def centre(self, side: Side) -> Tensor:
        """Returns the centre that step 1 subtracts from a tower's projected features of unit length, ``(k,)`` float64.

        The centre is 0 before the means are released, and if the released mean could be noise alone.
        """
        moments = self.layout.decoded(self.released.detach().double().cpu())
        return centres(self.layout, self.noise, moments)[SIDES.index(side)]

    def head(self, side: Side) -> Head:
        """Returns the head of a tower, made from the moments released so far."""
        released = self.released.detach()
        made = self._made
        if made is None or made[0].device != released.device or not torch.equal(made[0], released):
            made = self._made = released.clone(), self._heads(released)
        return made[1][side]

    @torch.no_grad()
    def _heads(self, released: Tensor) -> dict[Side, Head]:
        # The heads are made outside inference mode, because they may outlive the call that asks for them.
        with torch.inference_mode(False):
            moments = self.layout.decoded(released.clone().double().cpu())
            offsets = centres(self.layout, self.noise, moments)
            if self.noise.leaves_public(self.layout.towers):
                offsets = torch.zeros_like(offsets)
            matrices = heads(self.layout, self.noise, moments, self.aligned)
            made: dict[Side, Head] = {}
            for side, centre, matrix in zip(SIDES, offsets, matrices, strict=False):
                basis = self.basis(side)
                made[side] = Head(basis, centre.to(basis.rows), matrix.to(basis.rows))
        return made


class _HeadOf(nn.Module):
    """Calls the head of a tower that another module owns, so that the model has the head's tensors only once."""

    def __init__(self, owner: MomentHeads | PublishedHeads, side: Side) -> None:
        super().__init__()
        self._owner = [owner]  # a list, so that it is not a submodule
        self._side: Side = side

    def forward(self, features: Tensor) -> Tensor:
        """Maps features ``(..., F)`` to embeddings ``(..., D)``."""
        return self._owner[0].head(self._side)(features)


def bridges(model: nn.Module) -> dict[Side, nn.Module]:
    """Returns, by tower, the module between its features (`features`, `text_features`) and its head of moments.

    After `keep_towers` these modules are frozen linear maps.

    Raises:
        UserError: If the model has no towers for heads of moments.
    """
    if isinstance(model, ClipModel):
        return {"image": nn.Identity(), "text": nn.Identity()}
    if isinstance(model, TwoTowerModel):
        text = model.text_encoder
        return {"image": model.projection, "text": text.head if isinstance(text, TextTower) else nn.Identity()}
    if type(model) is SimCLRModel:
        return {"image": model.head}
    raise UserError(
        "bounding.method = 'moments' needs a model that dpfed builds from [model] (SimCLRModel, TwoTowerModel or ClipModel), "
        f"got {type(model).__name__}. [moments-no-tower]"
    )


def keep_towers(model: nn.Module, aligned: bool, several_layers: bool = False) -> None:
    """Freezes a model, and removes the layers after its towers that heads of moments replace.

    These layers are the projection head of a model for images only, and the projections of two towers that are not aligned.

    Args:
        model: Model with towers; see `bridges`.
        aligned: Whether the model's projections were trained to align images and texts; they are then kept.
        several_layers: Whether the towers give the concatenated features of several layers, if they can.
    """
    model.requires_grad_(False)
    for tower in _layered(model) if several_layers else ():
        tower.give_several_layers()
    if isinstance(model, SimCLRModel):
        model.head = nn.Identity()
    elif isinstance(model, TwoTowerModel) and not aligned:
        model.projection = nn.Identity()
        if isinstance(model.text_encoder, TextTower):
            model.text_encoder.head = nn.Identity()


def layers_of(model: nn.Module) -> dict[Side, int]:
    """Returns, for each tower, the number of layers whose features it concatenates (`keep_towers`)."""
    counts: dict[Side, int] = dict.fromkeys(bridges(model), 1)
    for tower in _layered(model):
        counts["text" if isinstance(tower, FrozenTextTower) else "image"] = tower.layers
    return counts


def stages_of(model: nn.Module) -> list[int]:
    """Returns the indices of the image tower's stages whose means are concatenated with its features (`TimmEncoder.stages`)."""
    return [stage for tower in _layered(model) if isinstance(tower, TimmEncoder) for stage in tower.stages]


def has_several_layers(model: nn.Module) -> bool:
    """Returns whether a tower gives the concatenated features of several layers (`keep_towers`)."""
    return any(count > 1 for count in layers_of(model).values())


def _layered(model: nn.Module) -> list[TimmEncoder | FrozenTextTower]:
    """Returns the towers that can give the features of several layers."""
    return [module for module in model.modules() if isinstance(module, TimmEncoder | FrozenTextTower)]


@torch.no_grad()
def feature_widths(model: nn.Module, size: int, tokenizer: Callable[[list[str]], Tensor] | None) -> tuple[int, ...]:
    """Returns the widths of the input features of heads of moments: of images and, if the model reads text, of texts.

    Args:
        model: Model after `keep_towers`, on the CPU.
        size: Side of the images, pixels.
        tokenizer: Tokenizer of a model that reads text, else ``None``.

    Raises:
        UserError: If the features of an image of zeros or of an empty text are not finite.
    """
    between, was_training = bridges(model), model.training
    model.eval()
    outputs = [between["image"](method_of(model, "features")(torch.zeros(1, 3, size, size)))]
    if tokenizer is not None:
        outputs.append(between["text"](method_of(model, "text_features")(tokenizer([""]))))
    model.train(was_training)
    if not all(bool(features.isfinite().all()) for features in outputs):
        raise UserError("the towers give features that are not finite: choose other weights. [moments-not-finite]")
    return tuple(features.shape[1] for features in outputs)


def give_heads(model: nn.Module, owner: MomentHeads | PublishedHeads) -> None:
    """Attaches heads of moments to the towers of a model: they take the towers' features as input.

    Args:
        model: Model after `keep_towers`.
        owner: Module that has the heads.
    """
    setattr(model, ATTRIBUTE, owner)
    for side in bridges(model):
        setattr(model, f"{side}_head", _HeadOf(owner, side))


def has_own_heads(model: nn.Module) -> bool:
    """Returns whether a two-tower model has kept its trained projections (`keep_towers`)."""
    return isinstance(model, TwoTowerModel) and not isinstance(model.projection, nn.Identity)


def features_of(model: nn.Module) -> str:
    """Returns the name of the model's method for features: ``embed_images`` with heads of moments, else ``features``."""
    return "embed_images" if hasattr(model, ATTRIBUTE) else "features"


def published_heads(model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a model's heads of moments, by names such as ``image.matrix``; empty if it has no such heads."""
    owner = getattr(model, ATTRIBUTE, None)
    if owner is None:
        return {}
    return {f"{side}.{name}": value for side in bridges(model) for name, value in owner.head(side).state_dict().items()}
