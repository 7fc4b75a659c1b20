"""Features on a plane: a principal-component map, coloured by label."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure
from torch import Tensor

from dpfed.report.style import INK, MUTED, PAPER, RULE, SERIES, TRAINED, png_bytes

PANELS = 3


def principal_plane(features: Tensor) -> np.ndarray:
    """The two principal components of ``(n, F)`` features as ``(n, 2)``; the sign is fixed, so that a map is reproducible."""
    centred = features.double() - features.double().mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    strongest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    plane = centred @ (directions * torch.where(strongest < 0, -1.0, 1.0)).T
    return torch.nn.functional.pad(plane, (0, 2 - plane.shape[1])).numpy()


def map_png(features: Tensor, labels: dict[str, tuple[np.ndarray, list[str]]]) -> bytes:
    """The map as a PNG, one panel for each of up to three kinds of label.

    Args:
        features: ``(n, F)``, n > 2.
        labels: name -> (``(n,)`` int64 labels with -1 for none, names of the labels or []). Kinds of label with more classes
            than there are colours are left out; without any, all points have one colour.
    """
    plane = principal_plane(features)
    panels = [(name, *value) for name, value in labels.items() if 1 < len(_classes(value[0])) <= len(SERIES)][:PANELS]
    canvas = Figure(figsize=(9.6, 3.6 if len(panels) > 1 else 4.6), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(canvas)
    size = max(3.0, min(16.0, 12_000 / len(plane)))
    for axes, (title, values, names) in zip(
        np.atleast_1d(canvas.subplots(1, max(1, len(panels)))), panels or [("", np.zeros(len(plane), int) - 1, [])], strict=True
    ):
        for side in axes.spines.values():
            side.set_color(RULE)
        axes.set(xticks=[], yticks=[])
        unlabelled = values < 0
        axes.scatter(*plane[unlabelled].T, s=size, color=RULE if panels else TRAINED, linewidths=0)
        texts = {value: names[value] if value < len(names) else str(value) for value in _classes(values)}
        # Labels that are colours are drawn in them: a blue point that stands for "red" would mislead.
        literal = all(is_color_like(text) and not text.isdigit() for text in texts.values())
        for colour, (value, text) in zip(SERIES, texts.items(), strict=False):
            points = plane[values == value]
            paint = {"color": text, "edgecolors": MUTED, "linewidths": 0.4} if literal else {"color": colour, "linewidths": 0}
            axes.scatter(*points.T, s=size, alpha=0.75, label=text, **paint)
        axes.set_title(title, loc="left", color=INK, fontsize=10)
        if panels:
            wide = len(panels) == 1
            axes.legend(
                loc="center left" if wide else "upper center",
                bbox_to_anchor=(1.01, 0.5) if wide else (0.5, -0.01),
                ncols=1 if wide else max(1, min(5, len(texts))),
                frameon=False,
                fontsize=8.5,
                labelcolor=MUTED,
                handletextpad=0.1,
                columnspacing=0.8,
                markerscale=3 / max(1.0, size / 6) ** 0.5,
            )
    return png_bytes(canvas)


def _classes(values: np.ndarray) -> list[int]:
    return [int(value) for value in np.unique(values) if value >= 0]
