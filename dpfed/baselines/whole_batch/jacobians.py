"""Jacobians of embeddings with respect to the parameters, one embedding at a time, kept in factors.

The Jacobian of an embedding has D rows, each with a number for every parameter: too much to keep. For a linear or convolutional
layer that is applied at T positions, row k is ``sum over t of delta[k, t] x[t]^T``: the derivatives of dimension k with respect
to the layer's outputs, times the layer's inputs. Both factors together are T (D O + I) numbers instead of D O I, and all that
is needed of the rows follows from them (Goodfellow 2015, "Efficient Per-Example Gradient Computations"). The rows of all other
parameters (normalisation, embedding tables, adapters) are kept in full.

A Jacobian is computed in float32 from its own view alone, so no other record changes its bits. All results computed from it
(inner products, norms, sums) are float64: their error is negligible compared with C, also where parts of a gradient nearly
cancel.

Shapes: R embeddings, D dimensions of each, T positions, O outputs and I inputs of a layer (a constant 1 for its bias included),
p parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True)
class LayerFactors:
    """The part of the Jacobians that belongs to one linear or convolutional layer.

    Attributes:
        deltas: Derivatives of each embedding dimension with respect to the layer's outputs, ``(R, D, T, O)``.
        inputs: Inputs of the layer, unfolded, ``(R, T, I)``.
    """

    deltas: Tensor
    inputs: Tensor

    def gram(self) -> Tensor:
        """Computes the inner products of each embedding's own Jacobian rows, ``(R, D, D)`` float64."""
        d, t, o = self.deltas.shape[1:]
        i = self.inputs.shape[2]
        if t * t * i + d * t * t * o + d * d * t * o > d * t * o * i + d * d * o * i:
            rows = self._columns(0, o)
            return rows @ rows.mT
        deltas, inputs = self.deltas.double(), self.inputs.double()
        weighted = (inputs @ inputs.mT)[:, None] @ deltas
        return weighted.flatten(2) @ deltas.flatten(2).mT

    def pulled_back(self, cotangents: Tensor) -> Tensor:
        """Computes the sum over all Jacobian rows, weighted by cotangents ``(R, D)``: ``(O, I)`` float64."""
        slopes = torch.einsum("rd,rdto->rto", cotangents, self.deltas.double())
        return torch.einsum("rto,rti->oi", slopes, self.inputs.double())

    def slices(self, columns: int) -> Iterator[Tensor]:
        """Yields the Jacobian rows ``(R, D, p)`` float64, about `columns` parameters at a time."""
        outputs = self.deltas.shape[3]
        step = max(1, columns // self.inputs.shape[2])
        for start in range(0, outputs, step):
            yield self._columns(start, min(start + step, outputs))

    def _columns(self, start: int, end: int) -> Tensor:
        deltas = self.deltas[:, :, :, start:end].double().transpose(2, 3).flatten(1, 2)
        return (deltas @ self.inputs.double()).view(*self.deltas.shape[:2], -1)

    @staticmethod
    def cat(parts: list[LayerFactors]) -> LayerFactors:
        """Concatenates the rows of several chunks."""
        return LayerFactors(torch.cat([part.deltas for part in parts]), torch.cat([part.inputs for part in parts]))


@dataclass(frozen=True)
class PlainRows:
    """The part of the Jacobians that belongs to one parameter whose rows are kept in full.

    Attributes:
        rows: Jacobian rows ``(R, D, p)``.
    """

    rows: Tensor

    def gram(self) -> Tensor:
        """Computes the inner products of each embedding's own rows; see `LayerFactors.gram`."""
        rows = self.rows.double()
        return rows @ rows.mT

    def pulled_back(self, cotangents: Tensor) -> Tensor:
        """Computes the weighted sum of all rows, ``(p,)`` float64; see `LayerFactors.pulled_back`."""
        return torch.einsum("rd,rdp->p", cotangents, self.rows.double())

    def slices(self, columns: int) -> Iterator[Tensor]:
        """Yields the rows for `columns` parameters at a time; see `LayerFactors.slices`."""
        yield from (part.double() for part in self.rows.split(columns, dim=2))

    @staticmethod
    def cat(parts: list[PlainRows]) -> PlainRows:
        """Concatenates the rows of several chunks."""
        return PlainRows(torch.cat([part.rows for part in parts]))


Block = LayerFactors | PlainRows


class _Tower(nn.Module):
    """The embedding of one kind of view, as a module whose parameters can be replaced from outside."""

    def __init__(self, model: nn.Module, embed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._embed = embed

    def forward(self, views: Tensor) -> Tensor:
        return self._embed(views)


class Jacobians:
    """Computes the Jacobians of one tower.

    The Jacobians' part for an ordinary linear or convolutional layer is kept in factors (`LayerFactors`), if the tower calls
    the layer once, and the factors reproduce its gradient on a probe. They do not if the model uses the layer's weight
    elsewhere.

    Args:
        model: Model with the parameters; it must embed every view independently.
        embed: Method of the model, from views ``(n, ...)`` to embeddings ``(n, D)``.
        probe: One view ``(1, ...)`` that is not private.

    Attributes:
        names: Names of the trainable parameters that the tower uses.
        dimensions: D, the number of dimensions of an embedding.
        floats_per_row: Number of floats that are kept for one embedding: factors, and the rows of all other parameters.
        parameters: Number of trainable parameters that the tower uses.
    """

    def __init__(self, model: nn.Module, embed: Callable[[Tensor], Tensor], probe: Tensor) -> None:
        self._tower = _Tower(model, embed)
        # Every path of every parameter is listed. `functional_call` handles tied weights by itself, but leaves a module with
        # two paths without its parameters.
        names = {p: name for name, p in self._tower.named_parameters()}
        self._places = {
            f"{path}.{leaf}": names[p]
            for path, module in self._tower.named_modules()
            for leaf, p in module.named_parameters(recurse=False, remove_duplicate=False)
        }
        trainable = {name: p for p, name in names.items() if p.requires_grad}
        calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls.setdefault(module, []).append((inputs[0], output))

        hooks = [module.register_forward_hook(note) for module in self._tower.modules() if _has_rule(module)]
        embedding = self._tower(probe)
        for hook in hooks:
            hook.remove()
        once = {module: call[0] for module, call in calls.items() if len(call) == 1}
        outputs = [output for _, output in once.values()]
        wanted = [*outputs, *trainable.values()]
        frozen = not embedding.requires_grad
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if not frozen:
            gradients = torch.autograd.grad(embedding.sum(), wanted, allow_unused=True)
        deltas = dict(zip(once, gradients, strict=False))
        used: dict[Tensor, Tensor] = {
            p: g for p, g in zip(trainable.values(), gradients[len(once) :], strict=True) if g is not None
        }
        self._layers = {
            module: output.shape
            for module, (inputs, output) in once.items()
            if (delta := deltas[module]) is not None and _rule_holds(module, inputs, delta, used)
        }
        ruled = {p for module in self._layers for p in module.parameters()}
        self._owners = [[names[p] for p in module.parameters()] for module in self._layers]
        self._rest = [name for name, p in trainable.items() if p in used and p not in ruled]
        self._owners += [[name] for name in self._rest]
        self.names = {name for name, p in trainable.items() if p in used}
        self.dimensions = embedding.shape[1]
        self.parameters = sum(p.numel() for p in used)
        outputs_numel = sum(shape.numel() for shape in self._layers.values())
        inputs_numel = sum(_unfolded(module, once[module][0][None]).numel() for module in self._layers)
        rest = sum(trainable[name].numel() for name in self._rest)
        self.floats_per_row = self.dimensions * (outputs_numel + rest) + inputs_numel

    def each(self, views: Tensor) -> Iterator[tuple[Tensor, list[Block]]]:
        """Yields the embedding ``(1, D)`` and the Jacobian of each of the views ``(R, ...)``, one after the other."""
        if not self.parameters:
            with torch.no_grad():
                yield from ((self._tower(view), []) for view in views.split(1))
            return
        values = {name: p.detach() for name, p in self._tower.named_parameters()}
        rest = {name: values[name] for name in self._rest}
        # Where a layer's output is shifted by zeros, the derivative with respect to the shift is that of the output.
        shifts = [torch.zeros(shape, device=views.device) for shape in self._layers.values()]
        unit = torch.eye(self.dimensions, device=views.device)

        def of_view(view: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor], dict[str, Tensor]]:
            def embed(shifts: list[Tensor], rest: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
                inputs: list[Tensor] = []  # layers are called in the order of `_layers`, as on the probe

                def shifted(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
                    inputs.append(given[0])
                    return output + shifts[len(inputs) - 1]

                hooks = [module.register_forward_hook(shifted) for module in self._layers]
                try:
                    current = {place: rest.get(name, values[name]) for place, name in self._places.items()}
                    embedding = functional_call(self._tower, current, (view[None],), tie_weights=False)[0]
                finally:
                    for hook in hooks:
                        hook.remove()
                return embedding, inputs

            embedding, pull, inputs = vjp(embed, shifts, rest, has_aux=True)  # type: ignore[misc]  # torch declares two; with aux three
            deltas, rows = vmap(pull)(unit)
            return embedding, inputs, deltas, rows

        together = vmap(of_view)
        for part in views.split(1):
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
                embeddings, inputs, deltas, rows = together(part)
            layers = [
                LayerFactors(_positions(module, delta), _unfolded(module, given))
                for module, given, delta in zip(self._layers, inputs, deltas, strict=True)
            ]
            yield embeddings, [*layers, *(PlainRows(rows[name].flatten(2)) for name in self._rest)]

    def all(self, views: Tensor) -> tuple[Tensor, list[Block]]:
        """Computes the embeddings ``(R, D)`` and Jacobians of all views ``(R, ...)``."""
        embeddings, blocks = zip(*self.each(views), strict=True)
        return torch.cat(embeddings), [type(parts[0]).cat(list(parts)) for parts in zip(*blocks, strict=True)]

    def grams(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Computes embeddings ``(R, D)`` and inner products ``(R, D, D)`` of their Jacobian rows; memory is linear in R."""
        embeddings, grams = [], []
        for z, blocks in self.each(views):
            embeddings.append(z)
            none = z.new_zeros(*z.shape, z.shape[1], dtype=torch.float64)
            grams.append(sum((block.gram() for block in blocks), start=none))
        return torch.cat(embeddings), torch.cat(grams)

    def pull_back(self, views: Tensor, cotangents: Tensor, parts: Mapping[str, Tensor]) -> None:
        """Adds the gradient of ``sum(cotangents * embeddings)`` to a sum.

        Args:
            views: Views ``(R, ...)``.
            cotangents: Cotangents ``(R, D)`` float64.
            parts: Part of the sum that belongs to each trainable parameter, by name; added to in place.
        """
        for (_, blocks), weights in zip(self.each(views), cotangents.split(1), strict=True):
            for names, block in zip(self._owners, blocks, strict=True):
                gradient = block.pulled_back(weights)
                if len(names) > 1:  # a layer's weight, followed by its bias
                    parts[names[1]].add_(gradient[:, -1])
                    gradient = gradient[:, :-1]
                parts[names[0]].add_(gradient.reshape(parts[names[0]].shape))


def _has_rule(module: nn.Module) -> bool:
    parameters = list(module.parameters(recurse=False))
    if not parameters or not all(p.requires_grad for p in parameters):
        return False
    # Subclasses may compute something else; a parametrised layer is a subclass.
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


def _unfolded(module: nn.Module, inputs: Tensor) -> Tensor:
    """Unfolds a layer's inputs ``(R, 1, C, H, W)`` or ``(R, ..., I)`` by position, with a 1 for its bias: ``(R, T, I)``."""
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str)  # see `_has_rule`
        patches = F.unfold(inputs.flatten(0, 1), module.kernel_size, module.dilation, module.padding, module.stride).mT
    else:
        patches = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    return patches if module.bias is None else F.pad(patches, (0, 1), value=1.0)


def _positions(module: nn.Module, deltas: Tensor) -> Tensor:
    """Flattens the positions of a layer's outputs into one dimension, T.

    Args:
        module: Layer.
        deltas: Derivatives with respect to its outputs, ``(R, D, 1, O, H, W)`` for a convolution, else ``(R, D, ..., O)``.

    Returns:
        The derivatives, ``(R, D, T, O)``.
    """
    if isinstance(module, nn.Conv2d):
        return deltas.flatten(4).squeeze(2).mT
    return deltas.flatten(2, -2) if deltas.dim() > 3 else deltas[:, :, None]


def _rule_holds(module: nn.Module, inputs: Tensor, deltas: Tensor, gradients: dict[Tensor, Tensor]) -> bool:
    """Returns whether a layer's factors give its gradient on a probe; they do not if its weight is also used elsewhere."""
    expected = torch.cat(
        [gradients[p].flatten(1) if p.dim() > 1 else gradients[p][:, None] for p in module.parameters()], dim=1
    )
    factors = LayerFactors(_positions(module, deltas[None, None]), _unfolded(module, inputs[None]))
    computed = factors.pulled_back(expected.new_ones(1, 1, dtype=torch.float64))
    return bool(torch.dist(computed, expected.double()) <= 1e-4 * expected.norm())
