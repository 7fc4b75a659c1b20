"""A configuration with nothing left to choose."""

from __future__ import annotations

from pydantic import model_validator

from dpfed.config.configuration import Config
from dpfed.privacy.method import method_named


class ResolvedConfig(Config):
    """What runs take: a configuration in which nothing is left to choose. `dpfed.runs.resolution.resolve` makes one.

    Paths are absolute. The size of the images, the way to make them square, the device, the engine, the bias of a loss that has
    one, the digest of an open_clip or timm architecture, and what of its image tower is trained are there.
    """

    @model_validator(mode="after")
    def _nothing_left(self) -> ResolvedConfig:
        own_engine = not method_named(self.bounding.method).picks_engine
        left = {
            "data.size": self.data.size is None,
            "data.resize": self.data.resize == "model",
            "training.device": self.training.device == "auto",
            "bounding.engine": self.bounding.engine == "auto" and not own_engine,
            "objective.bias": self.objective.loss.bias is not None and self.objective.bias is None,
            "model.digest": (self.model.external or self.model.pretrained_text) and self.model.digest is None,
            "adaptation.image": self.model.external and self.adaptation.image == "auto",
        }
        if names := [name for name, is_left in left.items() if is_left]:
            raise ValueError(f"{', '.join(names)} left to choose: dpfed.runs.resolution.resolve does it")
        return self
