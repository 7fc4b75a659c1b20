"""What a GPU's pass dispatches and asks: not more for more groups, not much more than a step without privacy, and nothing."""

import contextlib
import importlib
from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfed.bounding.bounded_sum import Clip
from dpfed.bounding.engines.engine import GroupBatch
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.pass_shape import PassShape
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.contract import embeddings_of
from dpfed.objectives.infonce import group_loss
from tests.bounding.engines.cancelling import MODELS
from tests.bounding.kernels.tape import KERNELS

pytest.importorskip("triton")

KINDS = {
    "cnn": MODELS["cnn"],
    "resnet18": MODELS["resnet18"],
    "two towers": MODELS["two towers"],
    "ConvNeXt of timm": ModelConfig(image="timm/test_convnext", embedding=16, head_hidden=16),
    "ViT of timm": ModelConfig(image="timm/test_vit", embedding=16, head_hidden=16),
}
QUESTIONS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "unique", "cpu", "numpy", "equal"}


class Dispatched(TorchDispatchMode):
    """Counts operations."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Asked(TorchFunctionMode):
    """Notes whatever waits for a device's numbers."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names |= {getattr(func, "__name__", "")} & QUESTIONS
        return func(*args, **(kwargs or {}))


class NoKernel:
    """In place of a kernel, whose numbers do not matter here."""

    def __getitem__(self, grid):
        return lambda *given, **named: None


def batch_of(sizes, text):
    views = {"image": torch.randn(sum(sizes), 2, 3, 32, 32)}
    if text:
        views["text"] = torch.randint(1, 128, (sum(sizes), 1, 8))
    return GroupBatch(views, [sum(sizes[:count]) for count in range(len(sizes) + 1)])


@pytest.fixture
def no_kernels(monkeypatch):
    for path in KERNELS:
        file, kernel = path.split(".")
        monkeypatch.setattr(importlib.import_module(f"dpfed.bounding.kernels.{file}"), kernel, NoKernel())


class Brought(TorchDispatchMode):
    """Notes what comes to a device from the host, or goes there."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        given = {part.device.type for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor) and part.dim()}
        made = {part.device.type for part in tree_leaves(results) if isinstance(part, torch.Tensor)}
        if given and len(given | made) > 1:
            self.names.append(str(func))
        return results


@pytest.mark.usefixtures("as_on_a_gpu", "no_kernels")
@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_pass_brings_nothing_to_a_gpu_and_asks_it_nothing(name, monkeypatch):
    """On tensors that lie on no CPU and have no numbers: a question to them is an error."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which does not know that device
    config = KINDS[name]
    with torch.device("meta"):
        model = build_model(config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(), 32)
    engine = LayerwiseEngine(model, group_size=4)
    engine._shape = shape = PassShape.on("cuda", 4, None, 3 * 32 * 32)
    views = {name: view.to("meta") for name, view in batch_of([shape.room], config.reads_text).views.items()}
    starts, clip = torch.zeros(shape.groups + 1, dtype=torch.int32, device="meta"), torch.ones(3, device="meta").double()
    with Brought() as brought, Asked() as asked:
        engine._at_once(views, starts, Clip(*clip.unbind()))
    assert not brought.names and not asked.names


@pytest.mark.usefixtures("as_on_a_gpu", "no_kernels")
@pytest.mark.parametrize("name", KINDS)
def test_a_pass_dispatches_no_more_for_more_groups_and_asks_nothing(name):
    config = KINDS[name]
    model = build_model(config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(), 32)
    engine, counts = LayerwiseEngine(model, group_size=4, if_unlike="go on"), []
    engine.add_clipped(batch_of([4, 4], config.reads_text), 1.0, engine.zeros())  # what it does once
    for sizes in ([4, 4], [2] * 9):
        batch = batch_of(sizes, config.reads_text)
        with Dispatched() as dispatched, Asked() as asked:
            engine.add_clipped(batch, 1.0, engine.zeros())
        counts.append(sum(dispatched.names.values()))
        assert not asked.names and not any("_local_scalar_dense" in name or "nonzero" in name for name in dispatched.names)
    assert counts[0] == counts[1]
    with Dispatched() as plain:
        embeddings = embeddings_of(model, batch.views)
        group_loss(embeddings, torch.ones(18, dtype=torch.bool), model.temperature, model.bias).backward()
    most = 4 * sum(plain.names.values())
    assert counts[0] <= most
