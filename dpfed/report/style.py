"""Sets the look of all charts: colours that colour-blind readers can tell apart, light lines, no global matplotlib state.

A chart is drawn in the colours of a light page. The page contains the chart as inline SVG, whose colours are CSS variables. So
the chart follows the reader's choice of a light or dark screen, and prints light.
"""

from __future__ import annotations

import base64
import io
import re
from html import escape

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#1c2733"
MUTED = "#66727f"
RULE = "#e3e8ed"
PAPER = "#ffffff"
TRAINED, UNTRAINED, TARGET = "#0072b2", "#a9b4bf", "#d55e00"
# Okabe and Ito (2008), the readable ones first; black and yellow are left out on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#5a6773", "#8c6d31", "#393b79")

_DARK = {
    **{INK: "#e6edf3", MUTED: "#9aa7b4", RULE: "#2d3640", PAPER: "#161b22", UNTRAINED: "#66727f"},
    **{"#0072b2": "#4aa3e0", "#d55e00": "#ff8c42", "#009e73": "#2fc79a", "#cc79a7": "#dd9cc0", "#e69f00": "#f0b429"},
    **{"#56b4e9": "#8fd0f5", "#7a5195": "#b08bd0", "#5a6773": "#93a1ae", "#8c6d31": "#c9a65c", "#393b79": "#8a8de0"},
}


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Returns an empty chart with plain axes (`quiet`); width and height are in inches."""
    canvas = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    quiet(axes)
    return canvas, axes


def quiet(axes: Axes) -> None:
    """Removes everything from a chart's axes that does not help to read values."""
    axes.set_facecolor(PAPER)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(length=0, labelsize=9, colors=MUTED)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def palette() -> str:
    """Returns the part of the style sheet with the colours of charts, light and dark."""
    light = "".join(f"{_variable(colour)}: {colour}; " for colour in _DARK)
    night = "".join(f"{_variable(colour)}: {other}; " for colour, other in _DARK.items())
    return f":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {night}}} }}"


def inline_svg(canvas: Figure, title: str) -> Markup:
    """Converts a figure to an SVG element for an HTML page that has the `palette`; equal figures give equal text.

    Args:
        canvas: Figure.
        title: Title for readers who cannot see the figure.
    """
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpfed", "svg.fonttype": "path"}):
        canvas.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Removes comments and metadata, which hold texts and addresses, and ids that several figures share.
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    box = text.partition('viewBox="')[2].partition('"')[0]
    text = f'<svg viewBox="{box}" role="img" aria-label="{escape(title)}">{text[text.index(">") + 1 :]}'
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda match: f"{match[1]}: {_paint(match[2])}", text)
    return Markup(text)  # noqa: S704  matplotlib draws all texts as paths; the title is escaped


def _variable(colour: str) -> str:
    return f"--c{colour[1:]}"


def _paint(colour: str) -> str:
    return f"var({_variable(colour)}, {colour})" if colour in _DARK else colour


def uri(content: bytes, kind: str) -> str:
    """Encodes bytes as a ``data:`` address, so that a page needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
