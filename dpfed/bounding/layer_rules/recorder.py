"""Intercepts every function that reads a trainable parameter during a forward pass, and applies that function's rule.

The forward pass runs on detached parameters: autograd then computes gradients of activations only, and a hook on each layer's
output passes the output's gradient to the layer's rule. The model is not changed, so several threads may record it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpfed.bounding.layer_rules.grouping import Grouping, Unsupported, precise
from dpfed.bounding.layer_rules.indirect import AdaptedWeight, StandardisedWeight
from dpfed.bounding.layer_rules.term import Target, Term

Source = Target | AdaptedWeight | StandardisedWeight
Terms = Callable[[Tensor], Iterable[Term]]
Rules = Mapping[Callable, Callable[..., Any]]


class Recorder(TorchFunctionMode):
    """Torch mode for a forward pass. It keeps, for each layer, the tensors from which the groups' gradients are computed.

    Args:
        rules: Rules, by the torch function that a layer calls (`dpfed.bounding.layer_rules.rules`).
        sources: Tensors that layers read: trainable parameters, or weights computed from them. Each comes with the destination
            of its gradient.
        grouping: Grouping of the records in the forward pass.

    Attributes:
        terms: Gradients of all layers' parameters, in the form of `Term` objects; complete after the backward pass.
        rows: Length of the leading dimension of each layer's output.
        grouping: Grouping of the records in the forward pass.
    """

    def __init__(self, rules: Rules, sources: Iterable[tuple[Tensor, Source]], grouping: Grouping) -> None:
        super().__init__()
        self._rules, self.grouping = rules, grouping
        self.terms: list[Term] = []
        self.rows: list[int] = []
        # The tensors are kept with their ids, which Python would otherwise use again.
        self._sources = {id(tensor): (tensor, source) for tensor, source in sources}

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Runs in place of every function of torch while the recorder is on."""
        kwargs = kwargs or {}
        if not any(id(value) in self._sources for value in _tensors((args, kwargs))):
            return func(*args, **kwargs)
        rule = self._rules.get(func)
        result = NotImplemented if rule is None else rule(self, func, *args, **kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
            if any(value.is_floating_point() and id(value) not in self._sources for value in _tensors(result)):
                raise Unsupported(f"no rule for '{getattr(func, '__name__', func)}' on a trainable parameter [layer-no-rule]")
        return result

    def source(self, tensor: Tensor | None) -> Source | None:
        """Returns the destination of a tensor's gradient; ``None`` if the recorder does not watch the tensor."""
        return None if tensor is None else self._sources.get(id(tensor), (None, None))[1]

    def target(self, tensor: Tensor | None) -> Target | None:
        """Returns the destination of a tensor's gradient, for rules that cover neither adapted nor standardised weights.

        For a tensor that the recorder does not watch, the destination is ``None``.

        Raises:
            Unsupported: If the tensor is an adapted or standardised weight, or is computed from activations: the rule detaches
                the tensor, so the gradient would be lost.
        """
        source = self.source(tensor)
        if isinstance(source, AdaptedWeight):
            raise Unsupported("adapters on this kind of layer [layer-adapters]")
        if isinstance(source, StandardisedWeight):
            raise Unsupported("standardised weights in this kind of layer [layer-standardised]")
        if source is None and tensor is not None and tensor.requires_grad:
            raise Unsupported("a weight that is computed from activations [layer-weight-computed]")
        return source

    def watch(self, tensor: Tensor, source: Source) -> Tensor:
        """Watches a tensor that was computed only from parameters: a layer that reads it will get a term."""
        self._sources[id(tensor)] = (tensor, source)
        return tensor

    def alias(self, seen: Tensor, tensor: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
        """Watches ``seen``, which is ``view(tensor)``, as a view of a watched tensor.

        Raises:
            Unsupported: If `tensor` is not watched, or is an adapted weight.
        """
        source = self.source(tensor)
        if isinstance(source, StandardisedWeight):  # `pulled_back` handles the shape
            return self.watch(seen, source)
        target = self.target(tensor)
        if target is None:
            raise Unsupported("a view of a tensor that is not recorded [layer-view]")
        return self.watch(seen, target.through(view))

    def collect(self, output: Tensor, inputs: Tensor | None, terms: Terms, rounded: bool = False) -> Tensor:
        """Registers a layer: once the gradient of its output arrives, `terms` computes the gradients of its parameters.

        Args:
            output: Output of the layer, computed with detached parameters.
            inputs: Tensor that `terms` needs besides the gradient of the output, and that must not be overwritten before
                `terms` is called. ``None``: `terms` needs no such tensor.
            terms: Function from the gradient of the output to the parameters' gradients, as `Term` objects.
            rounded: Whether `terms` may get the gradient in the output's dtype, such as bf16, if GPU kernels compute the terms;
                otherwise the gradient is converted to float32 first.

        Returns:
            The output, with a hook that receives its gradient.
        """
        self.rows.append(len(output))
        if not output.requires_grad:
            output = _Beginning.apply(output, torch.zeros((), requires_grad=True))
        waiting = [(inputs, None if inputs is None else inputs._version, terms)]

        def arrived(gradient: Tensor) -> None:
            inputs, version, terms = waiting.pop()  # frees these tensors: the next layer may use their memory
            if inputs is not None and inputs._version != version:
                raise Unsupported("a layer's input is overwritten in place [layer-overwritten]")
            with torch.no_grad():
                is_taken = rounded and self.grouping.has_kernels_for(gradient)
                self.terms.extend(terms(gradient if is_taken else precise(gradient)))

        output.register_hook(arrived)
        return output


class _Beginning(torch.autograd.Function):
    """Makes the output of a first layer require a gradient, without copying it. The backward pass ends at this layer."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, _: Tensor) -> Tensor:
        """Returns the output itself, which now requires a gradient because the second argument does."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:
        """Ends the backward pass."""
        return None, None


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
