"""Image encoders of timm and torchvision (``model.image = "timm/NAME"``).

They are built for the run's image size, trained as the configuration says, and saved as these libraries read them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.models.blueprints import preprocess_cfg, quiet
from dpfed.models.description import BLACK_BORDERS, RGB_LAST
from dpfed.models.norm import fix_batch_norm
from dpfed.models.options import ModelConfig
from dpfed.models.timm_blueprints import RESIZE, TimmBlueprint, batch_norm_without_weights, create, timm_blueprint
from dpfed.models.torchvision_encoders import PREFIX as TORCHVISION
from dpfed.models.torchvision_encoders import create as create_torchvision
from dpfed.models.weight_files import fitting_weights, reading_weights, words

_STAGES = 2  # number of stages whose means are concatenated with the features
_ROUNDING = 1e-6  # relative rounding error of float32


class TimmEncoder(nn.Module):
    """A timm or torchvision model without its classifier, as an image encoder.

    Args:
        timm: Network from normalised images ``(n, 3, H, W)`` to features ``(n, F)``.
        features_dim: F, number of features.
        size: Side of the images, pixels.

    Attributes:
        features_dim: F, number of features; the sum of the layers' widths if several layers are concatenated.
        stages: Indices of the stages whose means are concatenated with the features (`give_several_layers`), counted from the
            end.
    """

    def __init__(self, timm: nn.Module, features_dim: int, size: int) -> None:
        super().__init__()
        self.timm, self.features_dim, self._size = timm, features_dim, size
        self.stages: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers whose features are concatenated."""
        return 1 + len(self.stages)

    def give_several_layers(self) -> None:
        """Lets `forward` return the features concatenated with the spatial means of the last two stages.

        Each piece is scaled to unit length, and `features_dim` grows accordingly. A stage whose mean equals the
        features, such as the last stage of a ResNet, is left out. Nothing changes if timm gives no stages for the network, or
        if the network's features are not the output of its head on the last stage. A vision transformer has no stages: its
        blocks all have the same resolution.
        """
        if not self.stages:
            widths = _stages(self.timm, self._size)
            self.stages, self.features_dim = tuple(widths), self.features_dim + sum(widths.values())

    def train(self, mode: bool = True) -> TimmEncoder:
        """Sets training mode; a frozen encoder stays in evaluation mode."""
        return super().train(mode and any(parameter.requires_grad for parameter in self.parameters()))

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images ``(n, 3, H, W)`` to features ``(n, features_dim)``."""
        if not self.stages:
            return self.timm(images)
        net: Any = self.timm
        last, maps = net.forward_intermediates(images, indices=list(self.stages))
        pieces = [net.forward_head(last), *(stage.mean((2, 3)) for stage in maps)]
        return torch.cat([F.normalize(piece, dim=1) for piece in pieces], dim=1)


@torch.no_grad()
def _stages(net: Any, size: int) -> dict[int, int]:
    """Returns the widths of a network's last two stages, by index from the end (-2, -1), measured on an image of noise.

    The result is empty if timm reports fewer than two stages, if all stages have the same resolution (as in a ViT), or if the
    network's features are not what its head computes from the last stage. A stage is left out if its mean over all positions
    equals these features.
    """
    info = getattr(net, "feature_info", None)
    if info is None or not hasattr(net, "forward_intermediates") or not hasattr(net, "forward_head"):
        return {}
    stages = info.info if hasattr(info, "info") else info
    if len(stages) < _STAGES or len({stage["reduction"] for stage in stages}) == 1:
        return {}
    noise, was_training = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)), net.training
    net.eval()
    places, features = list(range(-_STAGES, 0)), net(noise)
    last, maps = net.forward_intermediates(noise, indices=places)
    means = {place: stage.mean((2, 3)) for place, stage in zip(places, maps, strict=True)}
    same = net.forward_head(last)
    net.train(was_training)
    if not torch.allclose(same, features, rtol=1e-4, atol=1e-5):  # the features do not follow from these stages
        return {}
    return {place: mean.shape[1] for place, mean in means.items() if not _equal(mean, features)}


def _equal(first: Tensor, second: Tensor) -> bool:
    """Returns whether two vectors differ by rounding only; even a BatchNorm that is not trained yet changes a vector more."""
    return first.shape == second.shape and bool((first - second).abs().max() <= _ROUNDING * second.abs().max())


def build_timm(model: ModelConfig, size: int | None, load_weights: bool = True) -> TimmEncoder:
    """Builds an encoder; random weights are drawn from torch's global generator.

    Args:
        model: Configuration of the model, which names the encoder.
        size: Side of the images, pixels; default: the architecture's own. Position embeddings are resized.
        load_weights: Whether to fetch or read the weights that the configuration names.

    Raises:
        UserError: If the architecture is unknown, has BatchNorm and no weights, or does not take images of this size; if the
            weights are missing, damaged or do not fit; or if the package timm is missing.
    """
    spec = timm_blueprint(model)
    size = size or spec.size
    options = {"img_size": size} if spec.cfg.get("fixed_input_size") else {}
    if load_weights and spec.file is not None:
        from timm.models import load_state_dict

        with reading_weights(spec.file, _library_of(spec)), quiet():
            state = load_state_dict(str(spec.file), weights_only=True)
        net = _with(spec, state, str(spec.file), options)
    else:
        net = create(spec, spec.published and load_weights, options)
    if fix_batch_norm(net) and load_weights and spec.random:
        raise batch_norm_without_weights(spec.name)
    for module in net.modules():
        if getattr(module, "inplace", False):  # neither torch.func nor gradient hooks allow in-place operations
            module.inplace = False  # type: ignore[assignment]
        _draw_nothing(module)
    return TimmEncoder(net, _features_dim(spec.title, net, size), size)


def _library_of(spec: TimmBlueprint) -> str:
    return "a torchvision model" if spec.name.startswith(TORCHVISION) else "a timm model"


def _draw_nothing(module: nn.Module) -> None:
    """Turns dropout and stochastic depth off in a module.

    They would draw from torch's global generator, so two engines would compute different gradients of the same records.
    """
    from timm.layers import DropBlock2d, DropPath, PatchDropout
    from torchvision.ops import StochasticDepth

    drawing = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, DropPath, DropBlock2d, PatchDropout, StochasticDepth
    if isinstance(module, drawing):
        for rate in ("p", "drop_prob", "prob"):
            if hasattr(module, rate):
                setattr(module, rate, 0.0)


def _with(spec: TimmBlueprint, state: dict[str, Tensor], where: str, options: dict[str, Any]) -> nn.Module:
    """Builds the model with given weights, all of which must fit. Weights of a classifier are left out.

    Args:
        spec: Blueprint of the encoder.
        state: Weights by name.
        where: Path of the weights, for messages.
        options: Further arguments of timm's ``create_model``.
    """
    from timm import create_model

    if spec.name.startswith(TORCHVISION):
        with fitting_weights(where, _library_of(spec)):
            classifier_free: Any = create_torchvision(spec.name.removeprefix(TORCHVISION), None, state)
        classifier_free.pretrained_cfg = dict(spec.cfg)
        return classifier_free
    with fitting_weights(where, _library_of(spec)), quiet():
        places = spec.cfg.get("classifier") or ()
        heads = [state.get(f"{place}.weight") for place in ((places,) if isinstance(places, str) else places)]
        classes = next((len(head) for head in heads if head is not None), 0)
        # If the model has as many classes as the file, timm requires that the file holds every tensor and that all fit.
        given = {"state_dict": state, "num_classes": classes, "label_offset": 0, "custom_load": False}
        net: Any = create_model(spec.name, pretrained=True, pretrained_cfg_overlay=given, num_classes=classes, **options)
        net.reset_classifier(0)
    net.pretrained_cfg.pop("state_dict")
    return net


@torch.no_grad()
def _features_dim(title: str, net: nn.Module, size: int) -> int:
    """Runs the encoder on a black image, and returns the number of features.

    Raises:
        UserError: If the encoder does not take images of this size, or does not return one vector per image.
    """
    patch = getattr(getattr(net, "patch_embed", None), "patch_size", None)
    patch = patch[0] if isinstance(patch, (tuple, list)) else patch
    if isinstance(patch, int) and size % patch:
        near = max(patch, size // patch * patch)
        raise UserError(
            f"{title} cuts images into patches of {patch} x {patch} pixels, but data.size = {size} is not a multiple of "
            f"{patch}: set data.size to {near} or {near + patch}. [encoder-patch-size]"
        )
    weight = next(net.parameters())
    try:
        features = net.eval()(weight.new_zeros(1, 3, size, size))
    except Exception as error:  # a model can raise anything for an image that is too small or too large
        raise UserError(
            f"{title} takes no images of {size} pixels ({words(error)}): set another data.size. [encoder-size]"
        ) from error
    finally:
        net.train()
    if not isinstance(features, Tensor) or features.dim() != 2:
        raise UserError(f"{title} does not give one vector per image: choose another model.image. [encoder-no-vector]")
    return features.shape[1]


def local_dir_config(encoder: TimmEncoder, name: str, preprocessing: Preprocessing, size: int) -> dict[str, Any]:
    """Makes the ``config.json`` that timm reads beside the weights: ``timm.create_model("local-dir:DIR", pretrained=True)``.

    timm cannot build torchvision's architectures, so for these the file only describes the weights and the images.

    Args:
        encoder: Trained encoder, with adapters or without.
        name: Name of the architecture.
        preprocessing: Preprocessing of the images in training.
        size: Side of the images in training, pixels.
    """
    net: Any = encoder.timm
    cfg = net.pretrained_cfg
    modes = {ours: theirs for theirs, ours in RESIZE.items()}
    same = preprocessing.resize != "pad"
    return {
        "architecture": name,
        "dpfed": {
            "preprocess_cfg": preprocess_cfg(preprocessing, size),
            "same_as_timm": same,
            "note": RGB_LAST if same else f"{BLACK_BORDERS} {RGB_LAST}",
        },
        "num_classes": 0,
        "num_features": net.num_features if encoder.stages else encoder.features_dim,
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "fixed_input_size": bool(cfg.get("fixed_input_size")),
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "interpolation": preprocessing.interpolation,
            "crop_pct": 1.0,
            "crop_mode": modes[preprocessing.resize],
            "num_classes": 0,
            "first_conv": cfg.get("first_conv"),
            "classifier": cfg.get("classifier"),
        },
    }
