"""Reports without their charts: drawing takes more than half of a small run's time, and the tests of the report do it."""

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from dpfed.report import html, pictures

_CHARTS = ("bar_chart", "comparison_plot", "epsilon_plot", "map_plot", "norm_plot", "progress_plot", "timeline_plot")
REAL = {name: getattr(html, name) for name in (*_CHARTS, "inline_svg")}
MAPS = pictures.embedding_maps


def undraw(patch: pytest.MonkeyPatch) -> None:
    """Charts of reports become empty elements with their titles."""
    for name in _CHARTS:
        patch.setattr(html, name, lambda *_, **__: Figure())
    patch.setattr(pictures, "embedding_maps", lambda *_: ())
    patch.setattr(html, "inline_svg", lambda _, title: Markup('<svg aria-label="{}"></svg>').format(title))


def draw(patch: pytest.MonkeyPatch) -> None:
    """Gives them back."""
    for name, real in REAL.items():
        patch.setattr(html, name, real)
    patch.setattr(pictures, "embedding_maps", MAPS)
