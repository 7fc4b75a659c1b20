"""Features on a plane: principal components, and UMAP where it is installed; each map is coloured by one kind of label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure
from torch import Tensor

from dpfed.report.style import INK, MUTED, PAPER, RULE, SERIES, TRAINED, dark, png_bytes

PANELS = 3
SIDE = 4.0  # inches, so that letters are readable on a screen of 390 pixels
_COLUMNS = 4  # of the legend
_NEIGHBOURS = 15  # of UMAP


def principal_plane(features: Tensor) -> np.ndarray:
    """The two principal components of ``(n, F)`` features as ``(n, 2)``; the sign is fixed, so that a map is reproducible."""
    centred = features.double() - features.double().mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    strongest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    plane = centred @ (directions * torch.where(strongest < 0, -1.0, 1.0)).T
    return torch.nn.functional.pad(plane, (0, 2 - plane.shape[1])).numpy()


def umap_plane(features: Tensor) -> np.ndarray | None:
    """UMAP of ``(n, F)`` features as ``(n, 2)``, always the same; ``None`` without umap-learn, or for fewer than 16 records.

    McInnes, Healy and Melville (2018), with the defaults of umap-learn, and cosines for distances.
    """
    if len(features) <= _NEIGHBOURS:
        return None
    try:
        from umap import UMAP
    except ImportError:
        return None
    made = UMAP(n_neighbors=_NEIGHBOURS, metric="cosine", random_state=0, n_jobs=1).fit_transform(features.numpy())
    return np.asarray(made)


@dataclass(frozen=True)
class Panel:
    """One map: its title, and its picture for a light and for a dark screen."""

    title: str
    light: bytes
    dark: bytes


def maps(features: Tensor, labels: dict[str, tuple[np.ndarray, list[str]]]) -> list[Panel]:
    """A map for each of up to three kinds of label in each plane; each can be read by itself on a phone.

    Args:
        features: ``(n, F)``, n > 2.
        labels: name -> (``(n,)`` int64 labels with -1 for none, names of the labels or []). Kinds of label with more classes
            than there are colours are left out; without any, there is one map whose points have one colour.
    """
    planes = [("principal components", principal_plane(features)), ("UMAP", umap_plane(features))]
    kinds = [(name, *value) for name, value in labels.items() if 1 < len(_classes(value[0])) <= len(SERIES)][:PANELS]
    panels = kinds or [("", np.full(len(features), -1), [])]
    return [
        Panel(f"{way}, by {name}" if name else way, *(_panel(plane, values, texts, paint) for paint in (str, dark)))
        for way, plane in planes
        if plane is not None
        for name, values, texts in panels
    ]


def _panel(plane: np.ndarray, values: np.ndarray, names: list[str], paint: Callable[[str], str]) -> bytes:
    texts = {value: names[value] if value < len(names) else str(value) for value in _classes(values)}
    rows = -(-len(texts) // _COLUMNS)
    canvas = Figure(figsize=(SIDE, SIDE + 0.24 * rows), facecolor=paint(PAPER), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    axes.set_facecolor(paint(PAPER))
    for side in axes.spines.values():
        side.set_color(paint(RULE))
    axes.set(xticks=[], yticks=[])
    size = max(3.0, min(16.0, 12_000 / len(plane)))
    across, down = plane[values < 0].T
    axes.scatter(across, down, s=size, color=paint(RULE if texts else TRAINED), linewidths=0)
    # Labels that are colours are drawn in them: a blue point that stands for "red" would mislead.
    literal = all(is_color_like(text) and not text.isdigit() for text in texts.values())
    for colour, (value, text) in zip(SERIES, texts.items(), strict=False):
        across, down = plane[values == value].T
        points = axes.scatter(
            across, down, s=size, color=text if literal else paint(colour), alpha=0.75, linewidths=0, label=text
        )
        if literal:
            points.set(edgecolors=paint(MUTED), linewidths=0.4)
    if texts:
        canvas.legend(
            loc="outside lower center",
            ncols=min(_COLUMNS, len(texts)),
            frameon=False,
            fontsize=10,
            labelcolor=paint(INK),
            handletextpad=0.1,
            columnspacing=0.9,
            markerscale=3 / max(1.0, size / 6) ** 0.5,
        )
    return png_bytes(canvas)


def _classes(values: np.ndarray) -> list[int]:
    return [int(value) for value in np.unique(values) if value >= 0]
