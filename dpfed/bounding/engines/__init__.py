"""Computes clipped gradients of groups, by two engines with one interface, and chooses between the engines.

An engine takes the views of the records of several groups. It adds every group's gradient, clipped to norm C, to one flat
vector. The engine ``loop`` is the reference, to which the engine ``layerwise`` is compared. ``layerwise`` is faster if groups
are small. Shapes: G groups of up to S records, P trainable parameters.
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
