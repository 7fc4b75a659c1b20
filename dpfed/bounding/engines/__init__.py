"""Clipped group gradients: three engines behind one interface, and the choice among them.

An engine takes the views of some groups and adds every group's gradient, clipped to norm C, into one flat float32 vector. The
loop is the oracle; the vectorised engine wins where small groups of a small model are bound by kernel launches; the layerwise
engine where writing down every group's gradient would cost more than computing it. Shapes: G groups of up to S records, P
trainable parameters.
"""

from dpfed.bounding.engines.choice import ENGINES, build_engine, fastest_engine, require_fitting
from dpfed.bounding.engines.engine import Engine, GroupBatch, LossOfViews, Precision, Views, require_fp32
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.bounding.engines.vmap import VmapEngine

__all__ = [
    "ENGINES",
    "Engine",
    "GroupBatch",
    "LayerwiseEngine",
    "LoopEngine",
    "LossOfViews",
    "Precision",
    "Views",
    "VmapEngine",
    "build_engine",
    "fastest_engine",
    "require_fitting",
    "require_fp32",
]
