"""The look of all charts: colours that colour-blind readers can tell apart, light lines, no global matplotlib state."""

from __future__ import annotations

import base64
import io

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, MUTED, RULE, PAPER = "#1c2733", "#66727f", "#e3e8ed", "#ffffff"
TRAINED, UNTRAINED, TARGET = "#0072b2", "#a9b4bf", "#d55e00"
# Okabe and Ito (2008), the readable ones first; black and yellow are left out on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#5a6773", "#8c6d31", "#393b79")


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty chart of so many inches with quiet axes."""
    canvas = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    quiet(axes)
    return canvas, axes


def quiet(axes: Axes) -> None:
    """Leaves of an axes box what helps to read values."""
    axes.set_facecolor(PAPER)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(length=0, labelsize=9, colors=MUTED)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def svg_uri(canvas: Figure) -> str:
    """A figure as a ``data:`` address of an SVG; equal figures give equal text."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpfed", "svg.fonttype": "path"}):
        canvas.savefig(out, format="svg", metadata={"Date": None})
    return uri(out.getvalue().encode(), "image/svg+xml")


def png_bytes(canvas: Figure) -> bytes:
    """A figure as a PNG, at twice the density of a common screen."""
    out = io.BytesIO()
    canvas.savefig(out, format="png", dpi=200, metadata={"Software": None})
    return out.getvalue()


def uri(content: bytes, kind: str) -> str:
    """Bytes as a ``data:`` address, so that a page needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
