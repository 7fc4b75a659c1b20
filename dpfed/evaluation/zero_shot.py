"""Zero-shot classification: predicts the class whose description is most similar to an image, without training on labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpfed.evaluation.retrieval import TIE
from dpfed.evaluation.tasks import CLASS, check_templates

TOP5_ABOVE = 10  # classes: with this many or fewer, top-5 accuracy is too easy to be informative


@torch.no_grad()
def class_embeddings(names: Sequence[str], templates: Sequence[str], embed: Callable[[list[str]], Tensor]) -> Tensor:
    """Returns one embedding for each class: the normalised mean of its prompts' normalised embeddings (Radford et al. 2021).

    Args:
        names: Names of C classes; underscores are replaced by spaces.
        templates: Prompts in which ``{}`` stands for the class.
        embed: Function that maps n texts to their embeddings ``(n, D)``.

    Returns:
        The class embeddings of unit length, shape ``(C, D)``.

    Raises:
        UserError: If a template lacks ``{}``.
    """
    check_templates(templates)
    prompts = [template.replace(CLASS, name.replace("_", " ")) for name in names for template in templates]
    prompt_z = normalize(embed(prompts).float(), dim=1)
    return normalize(prompt_z.unflatten(0, (len(names), len(templates))).mean(dim=1), dim=1)


@torch.no_grad()
def zero_shot_right(image_z: Tensor, class_z: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Returns whether each image's true class is the most similar class, and whether it is among the five most similar.

    A tie never counts in the model's favour: a wrong class that is as similar as the right class ranks before it.

    Args:
        image_z: Image embeddings, shape ``(n, D)``; this function normalises them.
        class_z: Class embeddings of unit length, shape ``(C, D)``.
        labels: True classes, int64 ``(n,)`` in [0, C).

    Returns:
        The outcomes, bool ``(n,)`` on the CPU, by metric: ``zero_shot_accuracy`` and, with more than 10 classes,
        ``zero_shot_top5_accuracy``.

    Raises:
        ValueError: If shapes are mismatched, there are no images, or a label is out of range.
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
    # "Not less" rather than "at least": a similarity that is NaN counts against the model, too.
    rank = (similarity < right - TIE).logical_not().sum(dim=1)  # the right class counts itself: 1 is the best
    outcomes = {"zero_shot_accuracy": (rank <= 1).cpu()}
    if len(class_z) > TOP5_ABOVE:
        outcomes["zero_shot_top5_accuracy"] = (rank <= 5).cpu()
    return outcomes


@torch.no_grad()
def confusions(image_z: Tensor, class_z: Tensor, labels: Tensor) -> Tensor:
    """Returns the confusion matrix; its diagonal counts the images that `zero_shot_right` counts as right.

    A wrong class that is as similar as the right class ranks before it.

    Args:
        image_z: Image embeddings, shape ``(n, D)``; this function normalises them.
        class_z: Class embeddings of unit length, shape ``(C, D)``.
        labels: True classes, int64 ``(n,)`` in [0, C).

    Returns:
        The counts, int64 ``(C, C)`` on the CPU: one row for each true class, one column for each predicted class.

    Raises:
        ValueError: For the reasons given at `zero_shot_right`.
    """
    right = zero_shot_right(image_z, class_z, labels)["zero_shot_accuracy"]
    similarity = normalize(image_z.float(), dim=1) @ class_z.T
    wrong = similarity.scatter(1, labels[:, None], -torch.inf).argmax(dim=1).cpu()
    true = labels.cpu()
    cells = true * len(class_z) + torch.where(right, true, wrong)
    return cells.bincount(minlength=len(class_z) ** 2).reshape(len(class_z), len(class_z))
