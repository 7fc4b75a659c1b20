"""A GPU without Triton, or one on which a kernel fails: another engine, a slower way, or one sentence."""

import importlib
import sys
import types

import pytest
import torch

from dpfed.bounding.engines import LayerwiseEngine, choose_engine, require_fitting
from dpfed.bounding.layer_rules.grouping import computes_together
from dpfed.config import ObjectiveConfig
from dpfed.errors import Notice, UserError
from dpfed.models.building import build_model
from tests.bounding.engines.cancelling import MODELS
from tests.bounding.engines.test_engines import batch_for

pytest.importorskip("triton")
from triton.compiler.errors import CompilationError  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from tests.bounding.kernels.tape import KERNELS  # noqa: E402

ERRORS = {
    "memory": (OutOfResources(232_448, 101_376, "shared memory"), "shared memory"),
    "compiler": (CompilationError("def add(): ...", None, "this architecture is unknown"), "is unknown"),
}


class Failing:
    """A kernel that does not run."""

    def __init__(self, error):
        self.error = error

    def __getitem__(self, grid):
        def launch(*given, **named):
            raise self.error

        return launch


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("error", "words"), ERRORS.values(), ids=ERRORS)
def test_an_engine_whose_kernels_fail_is_refused_in_a_sentence(error, words, monkeypatch):
    for path in KERNELS:
        file, kernel = path.split(".")
        monkeypatch.setattr(importlib.import_module(f"dpfed.bounding.kernels.{file}"), kernel, Failing(error))
    model, batch, told = build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"]), []
    assert choose_engine(model, batch, told=told.append) == "loop" and "does not fit" in told[0]
    for attempt in (
        lambda: require_fitting(model, batch),
        lambda: LayerwiseEngine(model).add_clipped(batch, 1.0, LayerwiseEngine(model).zeros()),
    ):
        with pytest.raises(UserError, match=rf"{words}.*\[layer-kernel"):
            attempt()


@pytest.mark.parametrize("absent", [True, False])
def test_without_triton_groups_are_computed_one_by_one(absent, monkeypatch):
    """A GPU is imagined, as far as a tensor on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.full(size, 1.0))
    broken = types.ModuleType("dpfed.bounding.kernels")
    broken.normalise = lambda *_: (_ for _ in ()).throw(RuntimeError("Failed to find C compiler.\nmore"))
    monkeypatch.setitem(sys.modules, "dpfed.bounding.kernels", None if absent else broken)
    computes_together.cache_clear()
    try:
        with pytest.warns(
            Notice, match="Triton's kernels do not run on this GPU .*: groups are computed one after the other"
        ) as said:
            assert not computes_together("cuda")
        assert absent or "(Failed to find C compiler.)" in str(said[0].message)
    finally:
        computes_together.cache_clear()
