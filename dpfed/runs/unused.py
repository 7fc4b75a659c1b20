"""Refuses trainable parameters that take no part in the loss, before any budget is spent."""

from __future__ import annotations

import torch
from torch import nn

from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.engines.engine import LossOfViews
from dpfed.errors import UserError
from dpfed.models.parameters import TrainableVector


def refuse_unused(model: nn.Module, group: GroupBatch, loss: LossOfViews, by_embeddings: bool) -> None:
    """Refuses trainable parameters on which the loss does not depend: a step would only add noise to them.

    Args:
        model: Model in the form that training uses, on its device.
        group: One group of random records.
        loss: Loss of the model on a group.
        by_embeddings: Whether parameters must take part in the embeddings instead of the loss, for methods that contrast the
            whole batch in their own way. Temperature and bias, which no embedding uses, are then not checked.

    Raises:
        UserError: If there is such a parameter; the message names the first.
    """
    vector = TrainableVector(model)
    model.train()
    with torch.random.fork_rng(devices=[]), loss.kernels():
        if by_embeddings:
            sums = [z.sum() for z in loss.embed(group.views).values() if z.requires_grad]
            if not sums:
                return  # nothing of an encoder is trained, which `dpfed.runs.trial_step` refuses
            output = torch.stack(sums).sum()
        else:
            present = torch.ones(group.offsets[-1], dtype=torch.bool, device=vector.parameters[0].device)
            output = loss(group.views, present)
        gradients = torch.autograd.grad(output, vector.parameters, allow_unused=True)
    named = zip(vector.names, vector.parameters, gradients, strict=True)
    unused = [name for name, values, gradient in named if gradient is None and not (by_embeddings and values.dim() == 0)]
    if unused:
        others = f" and {len(unused) - 1:,} more take" if len(unused) > 1 else " takes"
        raise UserError(
            f"'{unused[0]}'{others} no part in the loss, and training would only add noise there: remove the layer from the "
            "model, or freeze it with requires_grad_(False). [run-unused]"
        )
