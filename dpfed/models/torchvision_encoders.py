"""Image encoders of torchvision (``model.image = "torchvision/NAME"``). `TimmEncoder` wraps them as it wraps timm's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError, nearest

PREFIX = "torchvision/"
_SIZE = 224  # pixels


def known() -> list[str]:
    """Lists the names of torchvision's image classifiers."""
    from torchvision import models

    return models.list_models(module=models)


def weights_of(name: str) -> dict[str, Any]:
    """Returns the published weights of an architecture by their tags, such as ``IMAGENET1K_V1``.

    Raises:
        UserError: If torchvision has no such architecture.
    """
    from torchvision import models

    if name not in known():
        raise UserError(f"model.image: torchvision has no classifier '{name}'; {nearest(name, known())} [encoder-torchvision]")
    return {member.name: member for member in models.get_model_weights(name)}


def described(name: str, tag: str | None) -> tuple[dict[str, Any], Preprocessing]:
    """Describes the images that an architecture's weights expect.

    Args:
        name: Name of the architecture, without the prefix.
        tag: Tag of published weights; ``None``: the architecture's first published weights. No weights are loaded.

    Returns:
        The description in the form of timm's ``pretrained_cfg``, with `tag` as given; and the preprocessing.

    Raises:
        UserError: If torchvision has no such architecture.
    """
    weights = weights_of(name)
    expected = weights[tag].transforms() if tag else next(iter(weights.values())).transforms()
    size = expected.crop_size[0] if expected.crop_size else _SIZE
    given = expected.interpolation.value
    mean: tuple[float, float, float] = tuple(expected.mean)
    std: tuple[float, float, float] = tuple(expected.std)
    preprocessing = Preprocessing(mean, std, "crop", given if given in ("bicubic", "bilinear") else "bicubic")
    cfg = {"input_size": (3, size, size), "mean": preprocessing.mean, "std": preprocessing.std, "tag": tag}
    return cfg | {"interpolation": preprocessing.interpolation}, preprocessing


def create(name: str, tag: str | None, state: dict[str, Tensor] | None = None) -> nn.Module:
    """Builds a torchvision model without its classifier.

    Args:
        name: Name of the architecture, without the prefix.
        tag: Tag of published weights, which torchvision fetches; ``None``: random weights.
        state: Weights by name, which replace the others; all must fit. A classifier among them is left out.

    Raises:
        UserError: If the architecture's classifier is not a linear layer at its end.
        RuntimeError: If the weights do not fit.
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
        raise UserError(
            f"model.image = '{PREFIX}{name}' has no linear classifier at its end that dpfed can remove: choose another "
            "encoder. [encoder-no-features]"
        )
    return path
