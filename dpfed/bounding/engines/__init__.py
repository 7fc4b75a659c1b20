"""Clipped group gradients: two engines behind one interface, and the choice between them.

An engine takes the views of some groups and adds every group's gradient, clipped to norm C, to one flat vector. The loop is
the reference; the layerwise engine is faster where groups are small. Shapes: G groups of up to S records, P trainable
parameters.
"""

from dpfed.bounding.engines.choice import ENGINES, build_engine, choose_engine, require_fitting
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, exact_arithmetic
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine

__all__ = [
    "ENGINES",
    "Engine",
    "GroupBatch",
    "LayerwiseEngine",
    "LoopEngine",
    "LossOfViews",
    "Precision",
    "Views",
    "build_engine",
    "choose_engine",
    "exact_arithmetic",
    "require_fitting",
]
