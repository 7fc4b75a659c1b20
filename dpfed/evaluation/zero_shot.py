"""Zero-shot classification: the class whose description an image is most similar to, without training on any label."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.evaluation.retrieval import TIE
from dpfed.evaluation.tasks import CLASS, check_templates

TOP5_ABOVE = 10  # classes: with no more than these, one of five guesses is right too easily


@torch.no_grad()
def class_embeddings(names: Sequence[str], templates: Sequence[str], embed: Callable[[list[str]], Tensor]) -> Tensor:
    """One embedding for each class: the normalised mean of its prompts' normalised embeddings (Radford et al. 2021).

    Args:
        names: of C classes; an underscore is read as a space.
        templates: T prompts in which ``{}`` is the class.
        embed: texts -> ``(n, D)``.

    Returns:
        ``(C, D)`` of unit length.

    Raises:
        UserError: for a template without ``{}``.
    """
    check_templates(templates)
    prompts = [template.replace(CLASS, name.replace("_", " ")) for name in names for template in templates]
    prompt_z = normalize(embed(prompts).float(), dim=1)
    return normalize(prompt_z.unflatten(0, (len(names), len(templates))).mean(dim=1), dim=1)


@torch.no_grad()
def zero_shot_right(image_z: Tensor, class_z: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """For which images the own class is the most similar, or among the five most similar.

    A tie never counts in the model's favour: a class as similar as the right one stands before it.

    Args:
        image_z: ``(n, D)`` image embeddings; normalised here.
        class_z: ``(C, D)`` of unit length.
        labels: ``(n,)`` int64 in [0, C).

    Returns:
        ``zero_shot_accuracy`` and, with more than 10 classes, ``zero_shot_top5_accuracy``, ``(n,)`` bool on the CPU.

    Raises:
        ValueError: for mismatched shapes, no images, or a label out of range.
    """
    if not len(image_z) or image_z.shape[1:] != class_z.shape[1:] or labels.shape != image_z.shape[:1]:
        raise ValueError(
            f"zero-shot needs (n, D) images, (C, D) classes and (n,) labels, got {tuple(image_z.shape)}, "
            f"{tuple(class_z.shape)} and {tuple(labels.shape)}"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= len(class_z):
        raise ValueError(f"labels must be in [0, {len(class_z)}), got {int(labels.min())} to {int(labels.max())}")
    similarity = normalize(image_z.float(), dim=1) @ class_z.T
    right = similarity.gather(1, labels[:, None])
    # "Not less" rather than "at least": a similarity that is not a number counts against the model, too.
    rank = (similarity < right - TIE).logical_not().sum(dim=1)  # the right class counts itself: 1 is the best
    right_ones = {"zero_shot_accuracy": (rank <= 1).cpu()}
    if len(class_z) > TOP5_ABOVE:
        right_ones["zero_shot_top5_accuracy"] = (rank <= 5).cpu()
    return right_ones


@torch.no_grad()
def confusions(image_z: Tensor, class_z: Tensor, labels: Tensor) -> Tensor:
    """How many images of each class were given to each class; the diagonal counts those of `zero_shot_right`.

    A class that is as similar as the right one stands before it.

    Args:
        image_z: ``(n, D)`` image embeddings; normalised here.
        class_z: ``(C, D)`` of unit length.
        labels: ``(n,)`` int64 in [0, C).

    Returns:
        ``(C, C)`` int64 on the CPU: a row for each true class, a column for each class that was given.

    Raises:
        ValueError: see `zero_shot_right`.
    """
    right = zero_shot_right(image_z, class_z, labels)["zero_shot_accuracy"]
    similarity = normalize(image_z.float(), dim=1) @ class_z.T
    wrong = similarity.scatter(1, labels[:, None], -torch.inf).argmax(dim=1).cpu()
    own = labels.cpu()
    cells = own * len(class_z) + torch.where(right, own, wrong)
    return cells.bincount(minlength=len(class_z) ** 2).reshape(len(class_z), len(class_z))
