"""The declaration of a loss: one object with its options and its requirements on the model, in a file of its own.

``objective.name = NAME`` selects one of dpfed's losses, in ``dpfed/objectives/NAME.py``. The file's docstring cites the paper,
and its `OBJECTIVE` is an `Objective`. From that object, dpfed takes the keys of the configuration, their meaning and checks,
what the loss requires of the model, and the loss itself.

Reading a configuration imports the files of all losses. This must not take as long as importing torch, so the files import
torch only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from dpfed.schema.section import NoOptions, Section

if TYPE_CHECKING:
    from torch import Tensor


class GroupLoss(Protocol):
    """The interface of a function that computes the loss of one group."""

    def __call__(self, embeddings: dict[str, Tensor], present: Tensor, temperature: Tensor, bias: Tensor | None, /) -> Tensor:
        """Computes the sum of the loss over the records of a group that are present.

        Args:
            embeddings: Embeddings ``{"image": (S, V, D)[, "text": (S, W, D)]}`` of S records (padding included), each with V
                image views and W text views, in D dimensions. For losses that read labels, there is also ``"label": (S,)``
                (`dpfed.objectives.classes.first_of_class`). For models with centres (`dpfed.models.centres`), there is also
                ``"centres": (S, 1, 2 * modalities * D)``.
            present: Mask ``(S,)`` bool, False for padding.
            temperature: Temperature of the model, a scalar.
            bias: Bias of the model, a scalar; ``None`` if the model has no bias.
        """


@dataclass(frozen=True)
class Objective:
    """The declaration of a loss of one group.

    Attributes:
        title: Description in a few words, for `dpfed config keys`.
        loss: Function ``loss(embeddings, present, temperature, bias, options=...)``, see `GroupLoss`. It gets an instance of
            `options`.
        options: Section of the loss's keys in ``[objective]``. Losses may share a key if all declare it in the same way.
        unit_length: Whether the model normalises the embeddings to unit length.
        bias: Initial value of the model's bias, as a function of the number of contrasted records. `options` must then have a
            key ``bias``. ``None``: the loss adds no bias to its logits.
        own_terms: Whether the loss is a sum of terms that each belong to one record, or to a pair of records. `loss` then takes
            ``counted``, ``(S,)`` bool, the records whose terms are added up (default: all that are present). In a group with
            public records, the contribution of the private records is then the sum of their terms. For a loss without such
            terms, it is the difference of two losses (`dpfed.objectives.of_groups`).
        range: Loss per record that training rarely exceeds, as a function of the options and the number of contrasted
            records; usually twice the loss of a model that guesses. Released metrics do not distinguish larger losses.
            ``None``: unknown.
        images_only: Whether the loss compares views of an image, and cannot use captions.
        reads_labels: Whether the loss reads which records of the group share a class; its options then have a key ``label``.
        least: Smallest number of records in a group from which anything can be learnt. Engines leave out groups of one record.

    Raises:
        ValueError: If `reads_labels` is set and `options` has no key ``label``; or if `bias` is given but `options` has no key
            ``bias``, or the reverse.
    """

    title: str
    loss: Callable[..., Tensor]
    options: type[Section] = NoOptions
    unit_length: bool = True
    bias: Callable[[int], float] | None = None
    own_terms: bool = False
    range: Callable[[Any, int], float] | None = None
    images_only: bool = False
    reads_labels: bool = False
    least: int = 2

    def __post_init__(self) -> None:
        if self.reads_labels and "label" not in self.options.model_fields:
            raise ValueError(f"{self.title}: a loss that reads labels needs the key 'label'")
        if (self.bias is not None) != ("bias" in self.options.model_fields):
            raise ValueError(f"{self.title}: declare both `bias` and the key 'bias' of `options`, or neither")


class ContrastOptions(Section):
    """The common options of losses that contrast cosine similarities."""

    # Below this range, the softmax is a maximum; above it, the softmax is uniform: the gradient is lost in the noise.
    temperature: float = Field(0.1, ge=1e-3, le=100, description="divides the cosine similarities")
    learn_temperature: bool = Field(False, description="train temperature (1/100 and above) and bias with the model")
    augmentations: int = Field(
        0, ge=0, le=16, description="N_a: number of further views of every negative (intra-group augmentation)"
    )
