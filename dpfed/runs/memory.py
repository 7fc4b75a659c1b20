"""Checks whether a model and its groups can fit into this machine's memory, before the model is built.

The operating system kills a process that uses too much memory, and shows no message. So a run that cannot fit is refused. The
numbers that this module computes are lower bounds of what training takes, so a run that passes the check may still be too
large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from dpfed.building.images import image_shape
from dpfed.building.method import contrasted
from dpfed.building.model import model_of
from dpfed.config import Config
from dpfed.data.memory import memory_of
from dpfed.errors import UserError
from dpfed.models.options import ModelConfig
from dpfed.privacy.method import method_named

_FURTHER_COPIES = 3  # copies of the trained parameters: one group's gradient, the sum of gradients, the optimizer's moments
_KEPT = 0.5  # part of all layers' outputs that is kept for the backward pass, at least
_FLOAT = 4  # bytes of a float32
_PASSES = (512, 384, 256, 192, 128, 96, 64, 32)  # records of a pass, from which `records_of_a_pass` chooses


@dataclass(frozen=True)
class Needs:
    """Lower bounds of the memory that training takes, in bytes.

    Attributes:
        parameters: Number of parameters of the model (a count, not bytes).
        model: Bytes of the model's parameters, their gradients and the optimizer's moments.
        record: Bytes that the layers keep for one record's backward pass.
        group: Bytes that the layers keep for one group's backward pass.
        images: Bytes of the images of a microbatch.
    """

    parameters: int
    model: int
    record: int
    group: int
    images: int

    @property
    def together(self) -> int:
        """Sum of model, group and images, bytes."""
        return self.model + self.group + self.images


def needs_of(config: Config) -> Needs:
    """Estimates the memory that training takes at least, from a model on torch's meta device, which takes no memory.

    Args:
        config: Configuration with its defaults resolved.

    Raises:
        UserError: If dpfed cannot build the model on the meta device.
        RuntimeError: If torch cannot build the model on the meta device.
    """
    parameters, trained, outputs = _count(config)
    views = config.objective.augmentations + (1 if config.model.reads_text else 2)
    pixels = math.prod(image_shape(config))
    kept = _KEPT / (2 if config.training.precision == "bf16" else 1)
    each = views * (kept * outputs + _FLOAT * pixels) + _KEPT * _of_a_caption(config.model)
    images = _FLOAT * pixels * min(config.bounding.microbatch, config.privacy.batch)
    model = _FLOAT * (parameters + _FURTHER_COPIES * trained)
    return Needs(parameters, model, int(each), int(_records_of_a_group(config) * each), images)


def require_memory(config: Config, device: torch.device) -> None:
    """Refuses a configuration whose model, group or microbatch cannot fit into memory.

    A user's own model is not checked, nor is an external model whose needs cannot be counted.

    Args:
        config: Configuration with its defaults resolved.
        device: Device that trains.

    Raises:
        UserError: If the memory cannot suffice; the message says how much is needed and how much there is.
    """
    if config.model.is_own:  # a user's own model cannot be built on the meta device
        return
    try:
        needs = needs_of(config)
    except (UserError, RuntimeError):
        if config.model.external:  # some models cannot be built on the meta device
            return
        raise
    there = memory_of(device)
    if max(needs.model, needs.group, needs.images) > there:
        method = method_named(config.bounding.method)
        lower = ["data.size", "bounding.microbatch"]
        if not method.whole_batch and not method.closed_form:
            lower.insert(1, "public.records" if method.public_records else "bounding.group_size")
        raise UserError(
            f"training takes at least {_size(needs.together)} ({_size(needs.model)} for the model with its "
            f"{needs.parameters:,} parameters, {_size(needs.group)} for one group of {_records_of_a_group(config):,} records, "
            f"{_size(needs.images)} for the images of a microbatch), but the device has {_size(there)} of memory. Choose a "
            f"smaller model (model.architecture, model.image, ...), or lower {' or '.join(lower)}. [memory-too-little]"
        )


def records_of_a_pass(config: Config, device: torch.device) -> int | None:
    """Chooses how many records of several groups the layerwise engine passes through the model at once.

    The number is public. It is the largest of 512, 384, 256, 192, 128, 96, 64 and 32 for which a third of the GPU's memory
    suffices for the gradients of these records' groups and for twice `Needs.record` bytes of each record; 32 if no number
    fits. The result is ``None`` if the device is not ``cuda``, and for models whose memory cannot be counted, such as
    a user's own.

    Args:
        config: Configuration with its defaults resolved.
        device: Device that trains.
    """
    if device.type != "cuda" or config.model.is_own:
        return None
    try:
        needs = needs_of(config)
    except (UserError, RuntimeError):  # some models cannot be built on the meta device
        return None
    trained = (needs.model / _FLOAT - needs.parameters) / _FURTHER_COPIES
    gradients = 1.25 * _FLOAT * trained / contrasted(config)
    fit = int(memory_of(device) / 3 / (2 * needs.record + gradients))
    return next((records for records in _PASSES if records <= fit), _PASSES[-1])


def _records_of_a_group(config: Config) -> int:
    """Returns a lower bound on the number of records whose layer outputs are in memory at the same time."""
    method = method_named(config.bounding.method)
    return 2 if method.whole_batch else max(2, contrasted(config))


def _count(config: Config) -> tuple[int, int, float]:
    """Counts a model's parameters, its trained parameters, and the bytes of its image tower's layer outputs for one view."""
    outputs = 0

    def add(module: nn.Module, _: object, output: object) -> None:
        nonlocal outputs
        if isinstance(output, torch.Tensor) and not any(True for _ in module.children()):
            outputs += output.numel() * _FLOAT

    shape = image_shape(config)
    with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
        model = model_of(config, load_weights=False)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        for module in model.modules():
            module.register_forward_hook(add)
        model.eval().features(torch.empty(1, *shape))
    anchors = config.model.anchor_count if config.model.normalisation == "batch" else 0  # anchors pass through the tower, too
    return parameters, trained, outputs / (1 + anchors)


def _of_a_caption(model: ModelConfig) -> int:
    """Returns the bytes of the outputs of the small text tower's layers for one caption; 0 for pretrained text towers."""
    if model.kind != "image-text" or model.pretrained_text:
        return 0
    scores, vectors = 2 * model.text_heads * model.context**2, 10 * model.context * model.text_width
    return _FLOAT * model.text_layers * (scores + vectors)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
