"""What a loss is: one object with its options and what it needs of the model, in a file of its own.

``objective.name = NAME`` names ``dpfed/objectives/NAME.py``, whose docstring names the paper and whose `OBJECTIVE` is an
`Objective`. Keys of the configuration, their meaning and their refusal, the model, and the loss follow from that object.
The configuration reads all of these files, and must not wait for torch: they import it inside their functions.
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
    """The loss of one group."""

    def __call__(self, embeddings: dict[str, Tensor], present: Tensor, temperature: Tensor, bias: Tensor | None, /) -> Tensor:
        """The sum over the records of a group that are present.

        Args:
            embeddings: ``{"image": (S, V, D), "text": (S, W, D)}`` of the S records' views, padding included; of losses that
                read labels also ``"label": (S,)`` (`dpfed.objectives.classes.first_of_class`).
            present: ``(S,)`` bool, False for padding.
            temperature: of the model, a scalar.
            bias: of the model, a scalar, or ``None``.
        """


@dataclass(frozen=True)
class Objective:
    """The loss of a group.

    Attributes:
        title: in a few words, for `dpfed config keys`.
        loss: ``loss(embeddings, present, temperature, bias, options=...)``: see `GroupLoss`; `options` are the loss's own.
        options: its keys in the section ``[objective]``. Losses may share a key, if it is the same in all of them.
        unit_length: whether the model gives it embeddings of unit length.
        bias: where the model's bias starts, by the number of records that are contrasted; it needs a key ``bias``. ``None``:
            the loss adds no bias to its logits.
        own_terms: whether it is a sum of terms that each belong to one record, or to a pair; `loss` then takes
            ``counted``, ``(S,)`` bool, the records whose terms are added up (default: all that are present). What a record
            adds beside public ones is then these terms, and otherwise a difference of two losses.
        range: a loss per record that training hardly exceeds, by the options and the number of records that are contrasted:
            twice that of a guess, as a rule. Progress that is released tells no larger ones apart. ``None``: nobody knows.
        images_only: whether it compares views of an image, and knows nothing of captions.
        reads_labels: whether the loss reads which records of the group share a class; its options then have a key ``label``.
        least: so many records of a group at least have anything to learn from together. Engines leave out groups of one.
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
            raise ValueError(f"{self.title}: the key 'bias' and what it is for must be declared together")


class ContrastOptions(Section):
    """Keys of losses that contrast cosine similarities."""

    # Below, the softmax is a maximum; above, all similarities are the same to it: the gradient is lost in the noise.
    temperature: float = Field(0.1, ge=1e-3, le=100, description="divides the cosine similarities")
    learn_temperature: bool = Field(False, description="train temperature (1/100 and above) and bias with the model")
    augmentations: int = Field(0, ge=0, le=16, description="N_a: further views of every negative (intra-group augmentation)")
