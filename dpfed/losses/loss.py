"""Defines the base class of losses and, as callable objects, the losses that a configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dpfed.errors import UserError
from dpfed.objectives import OBJECTIVES
from dpfed.schema.wording import complaint


class Loss:
    """A loss of one group of records, as a callable object.

    Attributes:
        objective: Content of the section ``[objective]`` of a configuration that names this loss; empty if no configuration can
            name it.
        temperature: Temperature to set in the model; ``None`` if the model keeps its own temperature.
    """

    objective: Mapping[str, Any] = {}
    temperature: float | None = None

    def __call__(self, image: Tensor, text: Tensor | None = None) -> Tensor:
        """Computes the loss of one group.

        Args:
            image: Embeddings of the records' image views, ``(S, V, D)``: S records, V views of each, D dimensions.
            text: Embeddings of the W texts of each record, ``(S, W, D)``, for models that read text.

        Returns:
            A scalar, the mean over the S records.

        Raises:
            UserError: If the embeddings do not have three dimensions, or there are no texts and only one view of each image.
        """
        raise NotImplementedError

    def prepare(self, model: nn.Module, group_size: int) -> None:
        """Prepares a model for this loss: sets those attributes of the model on which the loss depends.

        Args:
            model: Model to prepare: a `SimCLR` or `TwoTower`; for a `PairLoss` or a loss of your own, any model.
            group_size: S, the expected number of records in a group.
        """


def refuse_views(name: str, image: Tensor, text: Tensor | None, fewest: int = 2) -> None:
    """Refuses embeddings that a loss of two views cannot read.

    Args:
        name: Name of the loss.
        image: Embeddings of the image views, which should be ``(S, V, D)``.
        text: Embeddings of the texts, which should be ``(S, W, D)``; ``None``: there are no texts.
        fewest: Smallest number of image views that a record must have if there are no texts.

    Raises:
        UserError: If the embeddings do not have three dimensions, or there are no texts and too few views.
    """
    for z in (image,) if text is None else (image, text):
        if z.dim() != 3:
            raise UserError(
                f"{name}: expected embeddings of three dimensions, (records, views, D), got {tuple(z.shape)}: put the views of "
                "each record side by side, for example with torch.stack([first, second], dim=1). [loss-dimensions]"
            )
    if text is None and image.shape[1] < fewest:
        raise UserError(
            f"{name} compares views, expected at least {fewest} of each record, got embeddings (records, views, D) = "
            f"{tuple(image.shape)}: in a run, set Views(count={fewest}) or more. [loss-views]"
        )


class _Named(Loss):
    """Base class of the losses that a configuration can name.

    Raises:
        UserError: If a configuration would refuse an option.
    """

    name: str

    def __init__(self, temperature: float | None = None, **options: Any) -> None:
        self.temperature, self._options = temperature, {key: value for key, value in options.items() if value is not None}
        keys = {"temperature": temperature} if temperature is not None and self._contrasts else {}
        self.objective = {"name": self.name, **keys, **self._options}
        try:
            OBJECTIVES[self.name].options(**keys, **self._options)
        except ValidationError as error:
            key = error.errors()[0]["loc"][0]
            raise UserError(f"{type(self).__name__}, option {key}: {complaint(error)}. [loss-named-option]") from error

    def __repr__(self) -> str:
        said = {key: value for key, value in self.objective.items() if key != "name"}
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in said.items())})"

    @property
    def _contrasts(self) -> bool:
        return "temperature" in OBJECTIVES[self.name].options.model_fields

    def __call__(self, image: Tensor, text: Tensor | None = None) -> Tensor:
        """Computes the loss of one group, see `Loss.__call__`."""
        refuse_views(type(self).__name__, image, text)
        return self._of({"image": image} if text is None else {"image": image, "text": text})

    def _of(self, embeddings: dict[str, Tensor], **label: Tensor) -> Tensor:
        """Computes the loss of one group, the mean over its records, from their embeddings and classes."""
        objective, image = OBJECTIVES[self.name], embeddings["image"]
        if objective.unit_length:
            embeddings = {name: nn.functional.normalize(z, dim=-1) for name, z in embeddings.items()}
        given = {key: value for key, value in self.objective.items() if key in objective.options.model_fields}
        temperature = torch.tensor(self.temperature or 0.1, device=image.device)
        bias = None if objective.bias is None else self._options.get("bias", objective.bias(len(image)))
        present = torch.ones(len(image), dtype=torch.bool, device=image.device)
        offset = None if bias is None else torch.tensor(float(bias), device=image.device)
        options = objective.options(**given)
        return objective.loss({**embeddings, **label}, present, temperature, offset, options=options) / len(image)

    def prepare(self, model: nn.Module, group_size: int) -> None:
        """Prepares a model for this loss, see `Loss.prepare`."""
        objective = OBJECTIVES[self.name]
        model.unit_length = objective.unit_length  # type: ignore[assignment]
        if objective.bias is not None:
            model.set_bias(self._options.get("bias", objective.bias(group_size)))  # type: ignore[operator]


class InfoNCE(_Named):
    """The softmax contrast inside one group (DP-GCL, equation 12): each view must find its partner among all records.

    Args:
        temperature: Divisor of the cosine similarities, from 0.001 to 100; default: the model's temperature, or 0.1 if the
            loss is called without a model.

    Raises:
        UserError: If the temperature is not a number from 0.001 to 100.
    """

    name = "infonce"

    def __init__(self, temperature: float | None = None) -> None:
        super().__init__(temperature)


class SigLIP(_Named):
    """The sigmoid contrast inside one group: for each pair of views, one binary decision whether they match (Zhai et al. 2023).

    Args:
        temperature: Divisor of the cosine similarities; see `InfoNCE`.
        bias: Term added to every logit, from -1000 to 1000; default: -ln(S - 1) for groups of S records.

    Raises:
        UserError: If the temperature or the bias is not a number in its range.
    """

    name = "siglip"

    def __init__(self, temperature: float | None = None, bias: float | None = None) -> None:
        super().__init__(temperature, bias=bias)


class BarlowTwins(_Named):
    """The Barlow Twins loss (Zbontar et al. 2021), which reads correlations between the dimensions of two views.

    Each dimension should agree between the views, and different dimensions should not be correlated.

    Args:
        redundancy: Weight of the squared correlations between different dimensions, from 0 to 1000; default: 5e-3.

    Raises:
        UserError: If the weight is not a number from 0 to 1000.
    """

    name = "barlow_twins"

    def __init__(self, redundancy: float | None = None) -> None:
        super().__init__(None, redundancy=redundancy)


class SupCon(_Named):
    """The supervised contrastive loss (Khosla et al. 2020): views of one class attract, views of different classes repel.

    Labels may be private. A record's class is part of the record, so the same noise protects it (docs/guarantee.md, Labels in a
    loss). The loss sees which records of its group share a class, and nothing else. In a group in which no two records share a
    class, only views of the same record attract each other, and labels add nothing. Groups of 16 records suit 10 classes, but
    not 1,000.

    Args:
        temperature: Divisor of the cosine similarities; see `InfoNCE`.
        label: Name of the records' label that states the class; default: the only label that the records have.

    Raises:
        UserError: If the temperature is not a number from 0.001 to 100, or the label's name is not a string, or is empty.
    """

    name = "supcon"

    def __init__(self, temperature: float | None = None, label: str | None = None) -> None:
        super().__init__(temperature, label=label)

    def __call__(self, image: Tensor, text: Tensor | None = None, *, label: Tensor | None = None) -> Tensor:
        """Computes the loss of one group, the mean over its records.

        Args:
            image: Embeddings of the V views of each of S records, ``(S, V, D)``.
            text: Ignored.
            label: Classes ``(S,)`` int64, equal where two records share a class; -1: the record has no class.

        Returns:
            A scalar, the mean over the S records.

        Raises:
            UserError: If `label` is missing or is not a tensor of shape ``(S,)``, or the embeddings do not have three
                dimensions.
        """
        refuse_views("SupCon", image, None, fewest=1)
        if label is None:
            raise UserError(
                "SupCon needs label=, the class of each record: call loss(image, label=classes). [loss-labels-missing]"
            )
        if not isinstance(label, Tensor) or label.shape != image.shape[:1]:
            given = f"shape {tuple(label.shape)}" if isinstance(label, Tensor) else f"the type {type(label).__name__}"
            raise UserError(
                f"SupCon: expected label as a tensor ({len(image)},), the class of each record, got {given}. "
                "[loss-labels-shape]"
            )
        alone = -1 - torch.arange(len(label), device=label.device)  # a record without a class shares it with no other
        return self._of({"image": image}, label=torch.where(label < 0, alone, label))
