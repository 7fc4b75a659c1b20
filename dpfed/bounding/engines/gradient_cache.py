"""Computes the gradient of a loss over a whole batch, in the memory that a microbatch needs.

The loss reads only the embeddings. So the embeddings are computed first, one microbatch after the other, without a graph for
autograd. Then the gradient of the loss with respect to the embeddings is computed; these numbers are called cotangents. Finally
each microbatch is embedded again, and a backward pass from its cotangents gives its part of the parameters' gradient (Gao et
al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").

Shapes: n records in the batch, V image views, W texts, D embedding dimensions, P trainable parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfed.bounding import foreach
from dpfed.bounding.clipping import Clip, clip_factors
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, draws, shared_out
from dpfed.errors import UserError
from dpfed.objectives import GroupLoss


def refuse_random(model: nn.Module) -> None:
    """Rejects a model that embeds a record differently each time.

    Raises:
        UserError: If the model draws random numbers.
    """
    random = next((path for path, module in model.named_modules() if draws(module)), None)
    if random is not None:
        raise UserError(
            f"the layer '{random}' draws random numbers in training, but methods that contrast the whole batch embed it twice, "
            "and need the same embeddings both times: set the dropout rate of this layer to 0. [engine-random]"
        )


class BatchEngine(Engine):
    """Engine that clips one gradient for each group: the gradient of the mean loss of the group's records.

    Usually the group is a whole batch.

    Args:
        model: Model that embeds each record independently and draws no random numbers: each record is embedded twice, and must
            get the same embeddings both times.
        precision: Precision of the forward pass.
        loss: Loss of all records together.
        microbatch: Number of records whose activations are in memory at a time.

    Raises:
        UserError: If the model draws random numbers, or has no trainable parameter.
    """

    name = "batch"

    def __init__(self, model: nn.Module, precision: Precision, loss: GroupLoss, microbatch: int) -> None:
        refuse_random(model)
        super().__init__(model)
        self._loss, self._microbatch = LossOfViews(model, precision, loss), microbatch

    def add_clipped(
        self, batch: GroupBatch, clip_norm: float | Clip, into: Tensor, losses: list[Tensor] | None = None
    ) -> Tensor:
        """Adds every group's clipped gradient to a flat vector, see `Engine.add_clipped`."""
        figures = [into.new_zeros(3, 0, dtype=self._exact)]
        for views in batch.groups():
            with self._loss.kernels():
                gradient, loss = self._gradient(views)
            norm = torch.linalg.vector_norm(gradient, dtype=self._exact)
            factor = clip_factors(norm, clip_norm).item()
            if factor > 0:  # 0 * inf is not 0: leave the gradient out altogether
                foreach.add_([into], [gradient], factor)
            count = torch.full_like(norm, len(next(iter(views.values()))))
            figures.append(torch.stack([norm, loss.to(norm) * count, count])[:, None])
        return shared_out(torch.cat(figures, dim=1), losses)

    def _gradient(self, views: Views) -> tuple[Tensor, Tensor]:
        """Computes the flat gradient ``(P,)`` of the mean loss, and the mean loss."""
        embeddings = {name: z.requires_grad_() for name, z in self._embed(views).items()}
        count = len(next(iter(embeddings.values())))
        present = torch.ones(count, dtype=torch.bool, device=self._vector.device)
        loss = self._loss.of(embeddings, present, *self._loss.scalars()) / count
        cotangents = torch.autograd.grad(loss, [*embeddings.values(), *self._vector.parameters], materialize_grads=True)
        # Temperature and bias, where they are learnt, enter the loss directly; all other parameters through the embeddings.
        gradient = torch.cat([part.reshape(-1).float() for part in cotangents[len(embeddings) :]])
        self._pull_back(views, dict(zip(embeddings, cotangents, strict=False)), gradient)
        return gradient, loss.detach()

    @torch.no_grad()
    def _embed(self, views: Views) -> Views:
        """Computes the embeddings ``{"image": (n, V, D), "text": (n, W, D)}`` of a whole batch, without a graph."""
        chunks = [self._loss.embed(chunk) for chunk in self._chunks(views)]
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def _pull_back(self, views: Views, cotangents: Views, into: Tensor) -> None:
        """Adds the gradient of ``sum(cotangents * embeddings)`` to a flat vector ``(P,)``."""
        parts = self._vector.split(into)
        for chunk, weights in zip(self._chunks(views), self._chunks(cotangents), strict=True):
            # A tower may be frozen altogether.
            embeddings = {name: z for name, z in self._loss.embed(chunk).items() if z.requires_grad}
            gradients = torch.autograd.grad(
                list(embeddings.values()),
                self._vector.parameters,
                [weights[name] for name in embeddings],
                materialize_grads=True,  # a learnt temperature does not affect the embeddings
            )
            foreach.add_(parts, gradients)

    def _chunks(self, tensors: Views) -> list[Views]:
        """Cuts the tensors ``(n, ...)`` of a batch along the records into microbatches."""
        count = len(next(iter(tensors.values())))
        starts = range(0, count, self._microbatch)
        return [{name: part[start : start + self._microbatch] for name, part in tensors.items()} for start in starts]
