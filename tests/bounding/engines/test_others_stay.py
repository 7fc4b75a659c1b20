"""What a group adds to the sum depends on no other group, also where gradients nearly cancel."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st
from torch import nn

from dpfed.bounding.clipping import GROUPS_OF_A_PASS, PLACES_OF_A_PASS, Clip
from dpfed.bounding.engines import ENGINES, GroupBatch, LayerwiseEngine, LoopEngine, build_engine, choose_engine
from dpfed.bounding.engines.batch_invariance import DependsOnOthers
from dpfed.bounding.engines.choice import require_fitting
from dpfed.bounding.engines.engine import sound_kernels
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.layer_rules import convolution, term
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.errors import Notice
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss
from tests.bounding.engines.cancelling import KINDS, MODELS, batch_of, model_of, moved_by_a_stranger, records
from tests.bounding.engines.test_engines import batch_for
from tests.sparing import halved, pairwise, sparing

NORMALISED = Clip(1.0, math.inf, 1e-4)
CLIPS = {"C = 0.1": 0.1, "C = 1e-5": 1e-5, "normalised": NORMALISED, "blown up": Clip(1.0, math.inf, 1e-9)}


@pytest.mark.parametrize(("name", "kind", "precision", "clip"), pairwise(["cnn", "two towers"], KINDS, ["fp32", "bf16"], CLIPS))
def test_a_stranger_moves_nobody(name, kind, precision, clip):
    generator = torch.Generator().manual_seed(7)
    assert moved_by_a_stranger("layerwise", model_of(name), kind, CLIPS[clip], generator, precision) == 0


@pytest.mark.long
@pytest.mark.parametrize("precision", sparing(["fp32", "bf16"], "bf16"))
def test_the_loop_has_no_company(precision):
    generator = torch.Generator().manual_seed(7)
    for name in ("cnn", "two towers"):
        assert moved_by_a_stranger("loop", model_of(name), "near", CLIPS["blown up"], generator, precision) == 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), halved(["resnet18", "resnet18, ImageNet stem"], ["near", "black"]))
def test_a_stranger_moves_nobody_in_a_deep_network(name, kind):
    generator = torch.Generator().manual_seed(8)
    assert moved_by_a_stranger("layerwise", model_of(name), kind, CLIPS["blown up"], generator, counts=(3,)) == 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), halved(["cnn", "two towers"], ["near", "black"]))
def test_a_stranger_moves_nobody_with_gram_matrices(name, kind, monkeypatch):
    """Then gradients are computed again for the sum: one group after the other, never those of several in one product."""
    for module in (term, convolution):
        monkeypatch.setattr(module, "gram_is_cheaper", lambda *_: True)
    generator = torch.Generator().manual_seed(10)
    for clip in (CLIPS["C = 1e-5"], CLIPS["blown up"]):
        assert moved_by_a_stranger("layerwise", model_of(name), kind, clip, generator) == 0


@pytest.mark.long
@pytest.mark.parametrize("bias", [pytest.param(1e2, marks=pytest.mark.slow), 1e6])
@pytest.mark.parametrize(("name", "clip"), halved(["cnn", "two towers"], ["C = 1e-5", "blown up"]))
def test_a_stranger_moves_nobody_where_embeddings_collapse(name, clip, bias):
    generator = torch.Generator().manual_seed(9)
    model = model_of(name, 0.05, bias)
    for kind in KINDS:
        assert moved_by_a_stranger("layerwise", model, kind, CLIPS[clip], generator) == 0


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(list(MODELS)),
    kind=st.sampled_from(KINDS),
    precision=st.sampled_from(["fp32", "bf16"]),
    size=st.sampled_from([2, 4, 7, 16]),
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
    bias=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    tiny=st.sampled_from([1.0, 1e-3, 10.0]),
    stability=st.sampled_from([None, 1e-2, 1e-9]),
    power=st.floats(-9, 0),
    seed=st.integers(0, 2**31),
)
def test_no_search_finds_a_stranger_who_moves_others(
    name, kind, precision, size, temperature, bias, tiny, stability, power, seed
):
    torch.manual_seed(seed)
    clip = 10.0**power if stability is None else Clip(1.0, math.inf, stability)
    model = model_of(name, temperature, bias, tiny)
    generator = torch.Generator().manual_seed(seed)
    moved = moved_by_a_stranger("layerwise", model, kind, clip, generator, precision, size, counts=(2, 3, 7, 12))
    target(moved)
    assert moved == 0


@pytest.mark.long
@pytest.mark.parametrize(("engine", "precision"), halved(["layerwise", "loop"], ["bf16", "fp32"]))
def test_what_others_left_in_memory_moves_nobody(engine, precision):
    """Convolutions of some libraries read numbers that nobody has written: here, of images that have become one pixel."""
    torch.manual_seed(4273)
    model, generator = model_of("resnet18, ImageNet stem", 0.05), torch.Generator().manual_seed(4273)
    batch = batch_of([records("noise", count, False, generator) for count in (17, 9, 17)])
    further = {"if_unlike": "go on"} if engine == "layerwise" else {}  # others ask whether groups are computed alike
    made, sums = build_engine(engine, model, precision, group_loss, 7, **further), []
    for left in (math.nan, 3.0):
        # Freed at once: the next tensors lie where these were.
        for kind in (torch.float32, torch.bfloat16):
            [torch.full((2**power + more,), left, dtype=kind) for power in range(6, 22) for more in (0, 1, 77) * 3]
        sums.append(made.zeros())
        made.add_clipped(batch, 1.0, sums[-1])
    assert all(torch.equal(sums[0], other) for other in sums[1:])


def test_the_last_bf16_thread_turns_onednn_on_again():
    first, second, before = sound_kernels("cpu", True), sound_kernels("cpu", True), torch.backends.mkldnn.enabled
    first.__enter__()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert not torch.backends.mkldnn.enabled
        thread.submit(second.__exit__, None, None, None).result()
    assert torch.backends.mkldnn.enabled == before


class ByNeighbours(nn.Module):
    """An image encoder in front of which a record is scaled, a little, by what else is in its pass."""

    def __init__(self, model, by):
        super().__init__()
        self.model, self.by = model, by

    def forward(self, views):
        image = views["image"]
        change = {
            "place": torch.arange(len(image)) % 2,
            "others": image[:, 0, 0, 0, 0].nan_to_num().sum().sin().expand(len(image)),
            "count": torch.full((len(image),), len(image) % 32 / 32),
        }[self.by]
        return self.model({**views, "image": image * (1 + 1e-6 * change.view(-1, 1, 1, 1, 1))})

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


@pytest.mark.long
@pytest.mark.usefixtures("asked_each_time")
@pytest.mark.parametrize(("by", "precision"), halved(["place", "others", "count"], ["fp32", "bf16"]))
def test_a_device_that_mixes_groups_is_left_to_the_loop(by, precision):
    model, batch = ByNeighbours(build_model(MODELS["cnn"], ObjectiveConfig()), by), batch_for(MODELS["cnn"])
    with pytest.raises(DependsOnOthers, match=r"in 'aten.*\[engine-not-alike"):
        LayerwiseEngine(model, precision, if_unlike="raise").add_clipped(batch, 1.0, LoopEngine(model).zeros())
    engine, loop = LayerwiseEngine(model, precision), LoopEngine(model, precision)
    total, expected = engine.zeros(), loop.zeros()
    with pytest.warns(Notice, match="one group at a time"):
        engine.add_clipped(batch, 1.0, total)
    loop.add_clipped(batch, 1.0, expected)
    assert torch.equal(total, expected)
    assert choose_engine(model, batch, precision) == "loop"
    require_fitting(model, batch, precision)  # it is slow then, and nothing is lost


def test_a_model_that_drops_at_random_takes_one_group_at_a_time():
    model = build_model(MODELS["cnn"], ObjectiveConfig())
    model.drop = nn.Dropout(0.1)
    with pytest.raises(DependsOnOthers, match="engine-dropout"):
        engine = LayerwiseEngine(model, if_unlike="raise")
        engine.add_clipped(batch_for(MODELS["cnn"]), 1.0, engine.zeros())


@pytest.mark.long
def test_bf16_is_as_near_to_float32_as_the_loops():
    model, batch = build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"])

    def clipped(name, precision):
        engine = build_engine(name, model, precision, group_loss, 4)
        into = engine.zeros()
        assert len(engine.add_clipped(batch, 0.05, into)) == 4
        return into

    exact, rounded, loop = clipped("layerwise", "fp32"), clipped("layerwise", "bf16"), clipped("loop", "bf16")
    assert 1e-4 < (rounded - exact).norm() / exact.norm()
    assert (rounded - exact).norm() < 2 * (loop - exact).norm()


@pytest.mark.usefixtures("asked_each_time")
def test_the_automatic_choice_tries_bf16():
    model, batch = build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"])
    assert choose_engine(model, batch, "bf16") == "layerwise"


def test_a_group_larger_than_others_may_be_has_a_pass_of_its_own():
    model = build_model(ModelConfig(width=4, embedding=8, head_hidden=8), ObjectiveConfig())
    image = torch.randn(50, 2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    batch, sums, figures = GroupBatch({"image": image}, [0, 40, 45, 50]), [], []
    for name in ENGINES:
        engine, losses = build_engine(name, model, "fp32", group_loss, 4), [torch.ones(2, 1)]  # of an earlier microbatch
        sums.append(TrainableVector(model).zeros())
        norms = engine.add_clipped(batch, 0.05, sums[-1], losses)
        assert len(losses) == 2
        figures.append(torch.stack([norms, *losses[1]]).sort(dim=1).values)
    assert (sums[0] - sums[1]).norm() < 1e-4 * sums[0].norm()
    assert figures[0].shape == (3, 3) and torch.allclose(*figures, rtol=1e-4)


@given(
    sizes=st.lists(st.integers(0, 90), max_size=120),
    size=st.integers(2, 64),
    threads=st.integers(1, 3),
    device=st.sampled_from(["cpu", "cuda", "mps"]),
)
@settings(deadline=None, max_examples=200)
def test_passes_hold_every_group_once_and_have_public_shapes(sizes, size, threads, device):
    offsets = [0]
    for count in sizes:
        offsets.append(offsets[-1] + count)
    batch, shape = GroupBatch({}, offsets), Padding.on(device, size)
    passes, alone = shape.passes(batch, threads), shape.alone(batch)
    assert sorted([*alone, *(group for groups in passes for group in groups)]) == sorted(batch.by_size())
    assert shape.groups <= {"cpu": GROUPS_OF_A_PASS, "cuda": PLACES_OF_A_PASS, "mps": GROUPS_OF_A_PASS}[device]
    assert shape.slots <= shape.room and (device == "cpu" or len(shape.totals) == 1)
    for groups in passes:
        records = sum(sizes[group] for group in groups)
        assert len(groups) <= shape.groups and max(sizes[group] for group in groups) <= shape.slots
        assert shape.total(records) in shape.totals and shape.total(records) >= records
