"""A GPU's pass on a CPU."""

import pytest

from dpfed.bounding.engines import layerwise, padding
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.layer_rules.grouping import Grouping


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The engine makes passes as on a GPU: one shape, all places together, Triton's kernels."""

    def grouping(*given, **named):
        return Grouping(*given, **named, batched=True)

    monkeypatch.setattr(layerwise, "Grouping", grouping)
    monkeypatch.setattr(padding, "computes_together", lambda device: device == "cuda")
    on = Padding.on
    monkeypatch.setattr(Padding, "on", lambda device, size, records, pixels: on("cuda", size, records or 24, pixels))
