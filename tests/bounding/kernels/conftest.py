"""A GPU's pass on a CPU."""

import pytest

from dpfed.bounding.engines import layerwise, pass_shape
from dpfed.bounding.engines.pass_shape import PassShape
from dpfed.bounding.layer_rules.grouping import Grouping


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The engine makes passes as on a GPU: one shape, all places together, Triton's kernels."""

    def grouping(*given, **named):
        return Grouping(*given, **named, batched=True)

    monkeypatch.setattr(layerwise, "Grouping", grouping)
    monkeypatch.setattr(pass_shape, "computes_together", lambda device: device == "cuda")
    on = PassShape.on
    monkeypatch.setattr(PassShape, "on", lambda device, size, records, pixels: on("cuda", size, records or 24, pixels))
