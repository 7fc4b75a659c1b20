"""Refuses models whose layers mix records: then one record would change the embeddings of others, beyond its own group.

The one exception is `AnchoredBatchNorm`, which mixes the records of one group: whoever runs such a model must give it one group
at a time (`dpfed.models.norm.mixes_records`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpfed.errors import UserError
from dpfed.models.norm import AnchoredBatchNorm

_TOLERANCE = 1e-5  # float32 rounding between equal inputs; a layer that mixes moves embeddings by far more

Views = dict[str, torch.Tensor]


def validate(model: nn.Module) -> None:
    """Checks the types of all layers.

    Args:
        model: any module.

    Raises:
        UserError: for BatchNorm of any kind but that of an `AnchoredEncoder`, or InstanceNorm with running statistics; names
            the module and the fix.
    """
    for path, module in model.named_modules():
        where = f"{type(module).__name__} at '{path or 'the model itself'}'"
        if isinstance(module, _BatchNorm):
            raise UserError(
                f"{where} mixes records through batch statistics: replace it by GroupNorm or LayerNorm, or by "
                "AnchoredBatchNorm in an AnchoredEncoder (model.normalisation = 'batch' in our own models)."
            )
        if isinstance(module, AnchoredBatchNorm) and not module.anchors:
            raise UserError(f"{where} has no anchors: wrap the encoder that holds it in an AnchoredEncoder.")
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise UserError(
                f"{where} keeps running statistics of private records: set track_running_stats=False, or use GroupNorm."
            )


def random_group(size: int, text: tuple[int, int] | None = None, records: int = 3, views: int = 2) -> Views:
    """A small group of random records, for `check_independence`.

    Args:
        size: side of the images, pixels.
        text: vocabulary and context of the captions, if the model reads any.
        records: S.
        views: V; a record has one caption.

    Returns:
        ``{"image": (S, V, 3, size, size)[, "text": (S, 1, context)]}``.
    """
    group = {"image": torch.randn(records, views, 3, size, size)}
    if text is not None:
        vocabulary, context = text
        group["text"] = torch.randint(1, vocabulary, (records, 1, context))
    return group


def check_independence(model: nn.Module, views: Views) -> None:
    """Runs the model in training mode and checks that a record changes no embedding but its own.

    This catches layers of one's own that `validate` cannot know. Layers that mix a group on purpose (`AnchoredBatchNorm`) take
    their statistics from the anchors alone meanwhile, so that only what else mixes shows. The model's mode, buffers and the
    random state are put back.

    Args:
        model: a model of docs/architecture.md.
        views: a group of at least two records, see `random_group`, on the model's device.

    Raises:
        UserError: if another record's embedding moves, or if a buffer changes in a forward pass.
    """
    records = len(views["image"])
    if records < 2:
        raise ValueError(f"a group of at least two records is needed, got {records}")
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    for module in modes:
        if isinstance(module, AnchoredBatchNorm):
            module.eval()
    try:
        before = _run(model, views)
        _check_buffers(model, buffers)
        for changed in range(records):
            another = _with_another(views, changed)
            if _moved(before, _run(model, another), changed, records):
                culprit = _first_mixing(_activations(model, views), _activations(model, another), changed, views)
                raise UserError(
                    f"{culprit} mixes records: changing record {changed} of a group moved the embeddings of others. "
                    "Let each record be embedded by itself (for normalisation: GroupNorm or LayerNorm)."
                )
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])


def _run(model: nn.Module, views: Views) -> Views:
    """The embeddings, always with the same random state, so that dropout draws the same masks."""
    devices = {tensor.device for tensor in views.values() if tensor.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        return model(views)


def _activations(model: nn.Module, views: Views) -> list[tuple[str, torch.Tensor]]:
    """What every module put out, in the order in which they finished (inner modules first)."""
    outputs: list[tuple[str, torch.Tensor]] = []

    def recorder(path: str) -> Any:
        def record(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                outputs.append((f"{type(module).__name__} at '{path}'", output.clone()))

        return record

    hooks = [module.register_forward_hook(recorder(path)) for path, module in model.named_modules() if path]
    try:
        _run(model, views)
        return outputs
    finally:
        for hook in hooks:
            hook.remove()


def _with_another(views: Views, changed: int) -> Views:
    result = {name: tensor.clone() for name, tensor in views.items()}
    noise = torch.randn(views["image"].shape[1:], generator=torch.Generator().manual_seed(changed))
    result["image"][changed] = 1 + 3 * noise.to(views["image"])  # moves mean and scale too: some layers mix only those
    if "text" in views:
        # Another record's tokens in reverse: valid token numbers, whatever the vocabulary.
        result["text"][changed] = views["text"][changed - 1].flip(-1)
    return result


def _moved(before: Views, after: Views, changed: int, records: int) -> bool:
    return any(_others_differ(before[name], after[name], changed, records) for name in before)


def _others_differ(before: torch.Tensor, after: torch.Tensor, changed: int, records: int) -> bool:
    """Whether rows other than those of record `changed` differ; the first dimension is S, or S times views."""
    kept = [record for record in range(records) if record != changed]
    first, second = (tensor.unflatten(0, (records, -1))[kept].double() for tensor in (before, after))
    return not torch.allclose(first, second, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _first_mixing(before: list, after: list, changed: int, views: Views) -> str:
    records = len(views["image"])
    rows = {records, *(view.shape[:2].numel() for view in views.values())}  # outputs that have a row per record or view
    for (name, first), (_, second) in zip(before, after, strict=False):
        comparable = first.dim() > 0 and first.shape == second.shape and len(first) in rows
        if comparable and _others_differ(first, second, changed, records):
            return name
    return "the model's own forward"


def _check_buffers(model: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if name not in buffers or not torch.equal(buffer, buffers[name]):
            raise UserError(
                f"the buffer '{name}' changes in a forward pass: it would keep statistics of private records outside the "
                "clipped gradient. Use a layer without running statistics (GroupNorm or LayerNorm)."
            )
