"""What a GPU's pass dispatches and asks: not more for more groups, not much more than a step without privacy, and nothing."""

import contextlib
import functools
import importlib
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines.engine import GroupBatch
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.engines.repeated_pass import RepeatedPass
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.data import transfer
from dpfed.models.building import build_model
from dpfed.models.contract import embeddings_of
from dpfed.objectives.infonce import group_loss
from tests.bounding.engines.cancelling import MODELS
from tests.host_waits import META, Asked, NoKernel, host_waits  # noqa: F401
from tests.sparing import sparing

pytest.importorskip("triton")
from tests.bounding.kernels.tape import KERNELS  # noqa: E402

KINDS = {
    "cnn": MODELS["cnn"],
    "resnet18": MODELS["resnet18"],
    "two towers": MODELS["two towers"],
    "ConvNeXt of timm": ModelConfig(image="timm/test_convnext", embedding=16, head_hidden=16),
    "ViT of timm": ModelConfig(image="timm/test_vit", embedding=16, head_hidden=16),
}


class Dispatched(TorchDispatchMode):
    """Counts operations."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


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


class Once:
    """A recording that repeats nothing."""

    def record(self, work):
        return work()

    def repeat(self):
        """Nothing."""


@pytest.mark.long
@pytest.mark.usefixtures("as_on_a_gpu", "no_kernels")
@pytest.mark.parametrize("name", sparing(KINDS, "resnet18", "two towers"))
def test_the_host_waits_for_nothing_in_a_gpus_passes(name, monkeypatch, host_waits):  # noqa: F811
    """Recorded or not: it asks nothing, and what it brings lies in pinned memory."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which does not know that device
    config = KINDS[name]
    with torch.device("meta"):
        model = build_model(config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(), 32)
    engine = LayerwiseEngine(model, group_size=4)
    engine._padding = shape = Padding.on("cuda", 4, None, 3 * 32 * 32)
    batch = batch_of([3, 4] * 40, config.reads_text)
    batch = GroupBatch({name: view.to("meta") for name, view in batch.views.items()}, batch.offsets)
    passes, sums = shape.passes(batch, 1), engine.zeros().long()
    assert len(passes) > 1
    with host_waits() as waits:
        RepeatedPass(Once(), functools.partial(engine._at_once, torch.int32), batch.views, shape, engine._exact).add(
            batch, passes, Clip(1.0), sums
        )
        engine._add(batch, passes, 1.0, sums)
    assert waits == []


@pytest.mark.parametrize(
    "waiting",
    [
        lambda there: torch.ones(3).to(META),
        lambda there: torch.ones(3).to(META, non_blocking=True),
        lambda there: torch.ones(3).pin_memory().to(META),
        lambda there: torch.tensor([1.0], device=META),
        lambda there: there.new_tensor([1.0]),
        lambda there: there.copy_(torch.ones(3)),
        lambda there: there.nonzero(),
        lambda there: there.__setitem__(0, True),
    ],
)
def test_a_wait_is_seen(waiting, host_waits):  # noqa: F811
    with host_waits() as waits, contextlib.suppress(RuntimeError, NotImplementedError):  # nobody knows how many are not zero
        waiting(torch.ones(3, device=META))
    assert waits
    with host_waits() as waits:
        transfer.to_device(torch.ones(3), META)
    assert not waits


@pytest.mark.usefixtures("as_on_a_gpu", "no_kernels")
@pytest.mark.parametrize("name", KINDS)
def test_more_groups_dispatch_nothing_more_and_ask_nothing(name):
    config = KINDS[name]
    model = build_model(config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(), 32)
    engine, counts = LayerwiseEngine(model, group_size=4, if_unlike="go on"), []
    engine.add_clipped(batch_of([4, 4], config.reads_text), 1.0, engine.zeros())  # what it does once
    for sizes in ([4, 4], [2] * 9):
        batch = batch_of(sizes, config.reads_text)
        with Dispatched() as dispatched, Asked(torch.device("cpu"), []) as asked:
            engine.add_clipped(batch, 1.0, engine.zeros())
        counts.append(sum(dispatched.names.values()))
        assert not asked.seen and not any("_local_scalar_dense" in name or "nonzero" in name for name in dispatched.names)
    assert counts[0] == counts[1]
    with Dispatched() as plain:
        embeddings = embeddings_of(model, batch.views)
        group_loss(embeddings, torch.ones(18, dtype=torch.bool), model.temperature, model.bias).backward()
    assert counts[0] <= 4 * sum(plain.names.values())
