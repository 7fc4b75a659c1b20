"""Groups whose gradients are what is left when large parts cancel, and how far one group moves the part of the others."""

import math

import torch

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import GroupBatch, build_engine
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.objectives.infonce import group_loss

MODELS = {
    "cnn": ModelConfig(width=8, embedding=16, head_hidden=16),
    "resnet18": ModelConfig(image="resnet18", width=8, embedding=16, head_hidden=16),
    "resnet18, ImageNet stem": ModelConfig(image="resnet18", stem="imagenet", width=16, embedding=16, head_hidden=16),
    "two towers": ModelConfig(
        kind="image-text", width=8, text_width=16, text_layers=1, vocabulary=128, embedding=16, context=8
    ),
}
KINDS = ("noise", "near", "equal", "black")
STEPS = 2.0**24  # of the longest part


def model_of(name: str, temperature: float = 0.2, bias: float = 0.0, tiny: float = 1.0):
    """A model of `MODELS`; large biases make its embeddings collapse, small weights its gradients."""
    model = build_model(MODELS[name], ObjectiveConfig(temperature=temperature))
    with torch.no_grad():
        for word, parameter in model.named_parameters():
            if word.endswith("bias") and bias:
                parameter.add_(bias * torch.randn(parameter.shape))
            parameter.mul_(tiny)
    return model


def records(kind: str, count: int, text: bool, generator: torch.Generator, side: int = 16) -> dict[str, torch.Tensor]:
    """Views of the records of one group."""
    shape = (1 if text else 2, 3, side, side)
    one, noise = torch.randn(1, *shape, generator=generator), torch.randn(count, *shape, generator=generator)
    views = {
        "noise": noise,
        "near": one + 1e-3 * noise,
        "equal": one.expand(count, *shape).clone(),
        "black": torch.zeros(count, *shape),
    }
    batch = {"image": views[kind]}
    if text:
        same = torch.randint(1, 128, (1, 1, 8), generator=generator).expand(count, 1, 8)
        other = torch.randint(1, 128, (count, 1, 8), generator=generator)
        batch["text"] = other if kind == "noise" else same.clone()
    return batch


def batch_of(groups: list[dict[str, torch.Tensor]]) -> GroupBatch:
    """Groups, one after the other."""
    offsets = [0]
    for views in groups:
        offsets.append(offsets[-1] + len(views["image"]))
    return GroupBatch({name: torch.cat([views[name] for views in groups]) for name in groups[0]}, offsets)


def a_further_group_of_nothing(batch: GroupBatch, count: int) -> GroupBatch:
    """The batch with one group more in front, of views that are no numbers: it adds nothing, but shares the others' passes."""
    further = {
        name: torch.full((count, *view.shape[1:]), torch.nan) if view.is_floating_point() else view[:1].repeat(count, 1, 1)
        for name, view in batch.views.items()
    }
    views = {name: torch.cat([further[name], view]) for name, view in batch.views.items()}
    return GroupBatch(views, [0, *(count + start for start in batch.offsets)])


def in_steps(clip: float | Clip) -> Clip:
    """The same rule for sums of whole numbers."""
    clip = Clip.of(clip)
    scale = STEPS / clip.bound
    return Clip(STEPS, clip.most * scale, clip.stability)


def moved_by_a_stranger(
    engine: str,
    model,
    kind: str,
    clip: float | Clip,
    generator: torch.Generator,
    precision: str = "fp32",
    size: int = 4,
    counts: tuple[int, ...] = (3, 12),
    others: int = 14,
    side: int = 16,
) -> float:
    """By how many steps a further group, which adds nothing itself, moves a number of the exact sum of the others."""
    text = hasattr(model, "embed_text")
    sizes = (torch.poisson(torch.full((others,), float(size)), generator=generator).int() + 2).tolist()
    groups = [records(kind, count, text, generator, side) for count in sizes]
    made = build_engine(engine, model, precision, group_loss, size, **({"if_unlike": "raise"} if engine == "layerwise" else {}))

    def total(groups) -> torch.Tensor:
        into = made.zeros().long()
        made.add_clipped(batch_of(groups), in_steps(clip), into)
        return into

    alone, most = total(groups), 0.0
    assert alone.any() or kind != "noise"
    for count in counts:
        stranger = records("noise", count, text, generator, side)
        stranger["image"] = stranger["image"] * math.inf  # not finite: it contributes zero
        for place in (0, len(groups) // 2, len(groups)):
            most = max(most, (total([*groups[:place], stranger, *groups[place:]]) - alone).abs().max().item())
    return most
