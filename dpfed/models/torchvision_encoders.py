"""Image encoders of torchvision (``model.image = "torchvision/NAME"``): what timm does not build, in the same wrapper."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError, nearest

PREFIX = "torchvision/"
_SIZE = 224  # pixels


def known() -> list[str]:
    """Names of torchvision's classifiers of images."""
    from torchvision import models

    return models.list_models(module=models)


def weights_of(name: str) -> dict[str, Any]:
    """The published weights of an architecture by their tags, such as ``IMAGENET1K_V1``.

    Raises:
        UserError: for an architecture that torchvision does not have.
    """
    from torchvision import models

    if name not in known():
        raise UserError(f"model.image: torchvision has no classifier '{name}'; {nearest(name, known())} [encoder-torchvision]")
    return {member.name: member for member in models.get_model_weights(name)}


def described(name: str, tag: str | None) -> tuple[dict[str, Any], Preprocessing]:
    """The size of an architecture's images and what its weights expect of them, as timm words them.

    Args:
        name: of the architecture, without the prefix.
        tag: of published weights; default: those that the architecture is known by, whatever their values are.
    """
    weights = weights_of(name)
    expected = weights[tag].transforms() if tag else next(iter(weights.values())).transforms()
    size = expected.crop_size[0] if expected.crop_size else _SIZE
    given = expected.interpolation.value
    mean: tuple[float, float, float] = tuple(expected.mean)
    std: tuple[float, float, float] = tuple(expected.std)
    found = Preprocessing(mean, std, "crop", given if given in ("bicubic", "bilinear") else "bicubic")
    cfg = {"input_size": (3, size, size), "mean": found.mean, "std": found.std, "tag": tag}
    return cfg | {"interpolation": found.interpolation}, found


def create(name: str, tag: str | None, state: dict[str, Tensor] | None = None) -> nn.Module:
    """The model without its classifier.

    Args:
        name: of the architecture, without the prefix.
        tag: of published weights, which torchvision fetches; ``None``: none.
        state: weights in their place, all of which must fit, with a classifier of any number of classes or none.

    Raises:
        UserError: for an architecture whose classifier is not a linear layer at its end.
        RuntimeError: for weights that do not fit.
    """
    from torchvision import models

    quiet = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    net = models.get_model(name, weights=tag, **quiet)
    place = _classifier(name, net)
    net.set_submodule(place, nn.Identity())
    for side in ("AuxLogits", "aux1", "aux2"):  # classifiers of inner layers, for training
        if hasattr(net, side):
            setattr(net, side, None)
            net.aux_logits = False  # type: ignore[assignment]
    if state is not None:
        aside = (f"{place}.", "AuxLogits.", "aux1.", "aux2.")
        net.load_state_dict({key: value for key, value in state.items() if not key.startswith(aside)})
    return net


def _classifier(name: str, net: nn.Module) -> str:
    layers = [(path, module) for path, module in net.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    path, last = layers[-1]
    if not isinstance(last, nn.Linear):
        raise UserError(f"model.image = '{PREFIX}{name}' gives no features: choose another encoder. [encoder-no-features]")
    return path
