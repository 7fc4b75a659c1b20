"""The trainable parameters of a model as one flat vector, which is clipped, noised, sent and hashed.

The module also has `train_part`, which chooses the trained parameters of a pretrained tower.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.models.options import Training


def exact_type(device: torch.device) -> torch.dtype:
    """Returns the dtype in which norms and sums are added up: float64, or float32 on mps, which has no float64.

    Over millions of numbers, a sum in float32 errs by a part in a thousand.
    """
    return torch.float32 if device.type == "mps" else torch.float64


class TrainableVector:
    """Names, shapes and order of a model's trainable parameters.

    Args:
        model: Any module.

    Attributes:
        names: Names of the trainable parameters, in the order of the vector.
        parameters: Trainable parameters, in the same order.
        numel: P, number of entries of the vector.
        device: Device of the first parameter.

    Raises:
        UserError: If the model has no trainable parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not named:
            raise UserError("the model has no trainable parameter: unfreeze a layer or add adapters. [model-all-frozen]")
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        self.device = self.parameters[0].device

    def zeros(self) -> Tensor:
        """Returns a vector to which gradients can be added: ``(P,)`` zeros of dtype `exact_type`, on the model's device."""
        return torch.zeros(self.numel, dtype=exact_type(self.device), device=self.device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Returns views into a flat ``(P,)`` vector, one per parameter, in the parameters' shapes."""
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True)]

    def gather(self) -> Tensor:
        """Returns a flat float32 copy ``(P,)`` of the parameters' values."""
        return torch.cat([parameter.detach().reshape(-1).float() for parameter in self.parameters])

    @torch.no_grad()
    def assign(self, flat: Tensor) -> None:
        """Writes a flat vector ``(P,)`` into the parameters."""
        for parameter, part in zip(self.parameters, self.split(flat), strict=True):
            parameter.copy_(part)


# In open_clip's own image towers: names of the last block and of the layers after it.
_LAST_OF_CLIP = ("transformer.resblocks.{}", "ln_post.", "proj", "attn_pool.", "layer4.{}", "attnpool.")


def train_part(tower: nn.Module, training: Training, name: str) -> None:
    """Freezes a tower except for its trained part; with ``lora``, adapters are added later.

    Args:
        tower: Encoder of timm, or image tower of an open_clip model.
        training: Trained part. ``full``: all parameters; ``bias``: all parameters of one dimension, mostly biases, and scales
            and shifts of normalisations (DP-BiTFiT, Bu et al. 2022); ``last``: the last block and the layers after it;
            ``lora`` and ``frozen``: no parameter.
        name: Name of the tower, for messages.

    Raises:
        UserError: If the tower has no such part.
    """
    tower.requires_grad_(training == "full")
    if training not in ("bias", "last"):
        return
    last = _last_block(tower) if training == "last" else set()
    chosen = [p for path, p in tower.named_parameters() if (path in last if training == "last" else p.dim() == 1)]
    if not chosen:
        what = "block that dpfed can find" if training == "last" else "bias or scale"
        raise UserError(f"adaptation.image = '{training}': {name} has no {what}; set 'full', 'lora' or 'frozen'. [tower-part]")
    for parameter in chosen:
        parameter.requires_grad_(True)


def _last_block(tower: nn.Module) -> set[str]:
    """Returns the names of the parameters of the last block and of the layers after it."""
    trunk = getattr(tower, "trunk", None)
    if trunk is not None or hasattr(tower, "group_matcher"):
        from timm.models import group_parameters

        net, prefix = (tower, "") if trunk is None else (trunk, "trunk.")
        groups = group_parameters(net, net.group_matcher())  # type: ignore[operator]
        names: set[str] = set()
        for number in sorted(groups, reverse=True):
            names |= {f"{prefix}{path}" for path in groups[number]}
            if any(net.get_parameter(path).dim() > 1 for path in groups[number]):  # a norm alone is not a block
                break
        return names | {path for path, _ in tower.named_parameters() if not path.startswith(prefix)}
    blocks = {path: module for path, module in tower.named_modules() if path in ("transformer.resblocks", "layer4")}
    prefixes = tuple(part.format(f"{len(list(module)) - 1}.") for module in blocks.values() for part in _LAST_OF_CLIP)
    return {path for path, _ in tower.named_parameters() if blocks and path.startswith(prefixes)}
