"""Calls a user's own loss: any function of the embeddings of one group. The function gets only the rows of this group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dpfed.errors import UserError, first_line
from dpfed.objectives.classes import LABEL, reads_labels
from dpfed.objectives.objective import Objective
from dpfed.schema.section import NoOptions

if TYPE_CHECKING:
    from torch import Tensor


_SHIPPED = ("DCL", "Prediction", "VICReg")


def is_shipped(name: str) -> bool:
    """Returns whether a name is that of `DCL`, `Prediction` or `VICReg` of `dpfed.losses`, which every installation has.

    Args:
        name: Name of the loss in the configuration, such as ``dpfed.losses:DCL``.
    """
    return name in {f"dpfed.losses:{loss}" for loss in _SHIPPED}


def own_objective(name: str) -> Objective:
    """Returns a placeholder for a user's own loss that is not loaded yet; calling the placeholder's `loss` raises an error.

    Args:
        name: Name of the loss in the configuration.
    """
    return Objective(title=name, loss=_not_loaded, options=NoOptions)


def _not_loaded(*given: Any, **options: Any) -> Tensor:
    raise ValueError("a user's own loss must be passed to the engine directly, not through its declaration")


class OwnLoss:
    """Wraps a user's loss function, which reads the embeddings of one group, as a `GroupLoss`.

    Args:
        function: Function ``loss(image (S, V, D))``, or for models that read text ``loss(image (S, V, D), text (S, W, D))``.
            S: number of records; V and W: numbers of image views and of texts of each record; D: number of dimensions. The
            function returns a scalar, the mean over the S records, as losses of torch do. A function with a parameter ``label``
            also gets class numbers ``(S,)`` int64, equal where records share a class
            (`dpfed.objectives.classes.first_of_class`).

    Attributes:
        reads_labels: Whether the function has a parameter ``label``.
    """

    batches = False  # the function need not support `torch.func.vmap`

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function, self.reads_labels = function, reads_labels(function)

    def __call__(
        self, embeddings: dict[str, Tensor], present: Tensor, temperature: Tensor, bias: Tensor | None = None, **ignored: Any
    ) -> Tensor:
        """Computes the sum of the loss over the records that are present: the function's mean times their number.

        See `GroupLoss` for the arguments. The function gets no rows of padding.
        """
        whole = bool(present.all())
        given = {name: z if whole else z[present] for name, z in embeddings.items()}
        rows = [given[name] for name in _ORDER if name in given]
        label = {LABEL: given[LABEL]} if self.reads_labels else {}
        return self.function(*rows, **label) * len(rows[0])


_ORDER = ("image", "text")


def refuse_unfit(function: Callable[..., Tensor], *rows: Tensor) -> None:
    """Tries a user's loss on the given embeddings and on random ones, and refuses a loss that cannot be used.

    Args:
        function: Function of the embeddings of one group, see `OwnLoss`.
        rows: The model's embeddings of one group of random records, ``(S, V, D)`` each.

    Raises:
        UserError: If the loss is not callable, fails (also in its backward pass), is not a scalar, is not finite, has no
            gradient, a gradient of 0 or one that is not finite, has trainable parameters of its own, or gives another value
            for the same embeddings after other calls.
    """
    import torch

    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function):
        raise UserError(
            f"expected a function of the embeddings of one group as loss, got {type(function).__name__}: give a function, or "
            "a loss of dpfed.losses, such as DCL(). [loss-own]"
        )
    if isinstance(function, torch.nn.Module) and any(parameter.requires_grad for parameter in function.parameters()):
        raise UserError(
            f"the loss {name} has parameters of its own, but dpfed trains only the model's: move them into the model, or set "
            "requires_grad_(False). [loss-parameters]"
        )
    called = function
    if reads_labels(function):  # records 0 and 1 share a class
        called = lambda *rows: function(*rows, label=torch.arange(len(rows[0]), device=rows[0].device).clamp(min=1) - 1)  # noqa: E731
    with torch.random.fork_rng(devices=[]):
        others = [torch.randn_like(z) for z in rows]
        first = _value(called, name, rows, gradient=True)
        _value(called, name, others)
        _value(called, name, [z[:2] for z in others])
        again = _value(called, name, rows)
    if not torch.equal(first, again):
        raise UserError(
            f"the loss {name} returns another value for the same embeddings after a call with other embeddings: it keeps a "
            "queue, a mean or a counter, or draws at random. It must be a function of one group's embeddings alone. "
            "[loss-remembers]"
        )


def _value(function: Callable[..., Tensor], name: str, rows: Sequence[Tensor], gradient: bool = False) -> Tensor:
    """Computes and checks the value of a loss on embeddings of one group; returns it as a scalar without a gradient.

    Args:
        function: Loss.
        name: Name of the loss in messages.
        rows: Embeddings, ``(S, V, D)`` each.
        gradient: Whether to check the gradient, too.

    Raises:
        UserError: If the loss fails, is not a finite scalar, or has no finite gradient.
    """
    import torch

    given = [z.detach().clone().requires_grad_() for z in rows]
    shapes = " and ".join(str(tuple(z.shape)) for z in given)
    try:
        value = function(*given)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = first_line(error) or "no message"
        raise UserError(
            f"the loss {name} failed on embeddings {shapes} of a group (S, V, D): {type(error).__name__}: {said}. [loss-fails]"
        ) from error
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        what = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise UserError(
            f"the loss {name} gave {what} for one group, expected a scalar: the mean over its records. [loss-no-scalar]"
        )
    if not bool(value.isfinite()):
        raise UserError(
            f"the loss {name} is {float(value.detach())} on random embeddings {shapes} of a group (S, V, D): correct the loss, "
            "for example where it divides by 0, or takes the logarithm of 0. [loss-not-finite]"
        )
    if gradient:
        try:
            parts = torch.autograd.grad(value, given, allow_unused=True) if value.requires_grad else [None]
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            said = first_line(error) or "no message"
            raise UserError(
                f"the backward pass through the loss {name} fails: {type(error).__name__}: {said}. Correct the loss, for "
                "example where it changes a tensor in place. [loss-backward]"
            ) from error
        if all(part is None or not bool(part.any()) for part in parts):
            raise UserError(
                f"the loss {name} has no gradient, or a gradient of 0, so nothing would be learnt: compute it by functions of "
                "torch, and do not detach all embeddings. [loss-no-gradient]"
            )
        if not all(part is None or bool(part.isfinite().all()) for part in parts):
            raise UserError(
                f"the gradient of the loss {name} is not finite on the model's embeddings of random records {shapes}: correct "
                "the loss, for example where it divides by 0, or takes a root of 0. [loss-gradient-infinite]"
            )
    return value.detach()
