"""A pass that was recorded comes to the bits of the pass itself, whatever it is repeated over, and leaves nothing behind."""

import math

import pytest
import torch

from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import layerwise
from dpfed.bounding.engines.batch_invariance import DependsOnOthers
from dpfed.bounding.engines.engine import GroupBatch
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.padding import Padding
from dpfed.bounding.engines.repeated_pass import CudaGraph, RepeatedPass, first_unlike, recording_on
from dpfed.config import AdaptationConfig, ModelConfig, ObjectiveConfig
from dpfed.errors import Notice
from dpfed.models.building import build_model
from tests.bounding.engines.cancelling import MODELS, batch_of, in_steps, moved_by_a_stranger, records

pytest.importorskip("triton")
from dpfed.bounding import kernels  # noqa: E402
from tests.bounding.kernels.tape import Tape, plain_kernels  # noqa: E402

pytestmark = [pytest.mark.usefixtures("as_on_a_gpu"), pytest.mark.filterwarnings("ignore:invalid value")]
SIZES = ([2, 3], [4, 2, 2, 3], [5], [2, 3])
CLIPS = (0.05, Clip(1.0, math.inf, 1e-2), Clip(0.5, 3.0), 0.05)
NAMES = {"cnn": MODELS["cnn"], "two towers": MODELS["two towers"]}


@pytest.fixture
def tapes(monkeypatch):
    """All recordings that engines make."""
    made = []
    monkeypatch.setattr(layerwise, "recording_on", lambda device: lambda: made.append(Tape()) or made[-1])
    plain_kernels(monkeypatch)
    return made


def model_of(config):
    return build_model(config, ObjectiveConfig(learn_temperature=True), AdaptationConfig(), 16)


def batches(text, seed=3, sizes=SIZES):
    generator = torch.Generator().manual_seed(seed)
    return [batch_of([records("noise", count, text, generator) for count in some]) for some in sizes]


def summed(engine, batch, clip):
    into, losses = engine.zeros().long(), []
    return into, engine.add_clipped(batch, in_steps(clip), into, losses), *losses


def directly(model, batch, clip, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(layerwise, "recording_on", lambda device: None)
        return summed(LayerwiseEngine(model, group_size=4, if_unlike="go on"), batch, clip)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_repetitions_have_the_bits_of_the_pass_itself(name, tapes, monkeypatch):
    """Over other records, sizes, clips and weights than when it was recorded, infinities, and the first batch again."""
    config = NAMES[name]
    model = model_of(config)
    engine, given = LayerwiseEngine(model, group_size=4, if_unlike="raise"), batches(config.reads_text)
    given[1].views["image"][0] = torch.inf
    for number, (batch, clip) in enumerate(zip(given, CLIPS, strict=True)):
        if number == 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
        sums, expected = summed(engine, batch, clip), directly(model, batch, clip, monkeypatch)
        assert all(torch.equal(one.nan_to_num(-1), other.nan_to_num(-1)) for one, other in zip(sums, expected, strict=True))
        assert sums[0].any()
    assert len(tapes) == 1 and tapes[0].repetitions > len(SIZES)


@pytest.mark.long
def test_adapters_are_merged_anew_in_every_repetition(tapes, monkeypatch):
    config = ModelConfig(image="timm/test_vit", embedding=16, head_hidden=16)
    model = build_model(config, ObjectiveConfig(), AdaptationConfig(image="lora", rank=2), 32)
    engine, (first, second) = LayerwiseEngine(model, group_size=4, if_unlike="raise"), batches_of_side(32)
    for batch in (first, second):
        assert torch.equal(summed(engine, batch, 0.05)[0], directly(model, batch, 0.05, monkeypatch)[0])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    assert len(tapes) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_moves_nobody_in_repeated_passes(name, tapes):
    generator = torch.Generator().manual_seed(7)
    moved = moved_by_a_stranger("layerwise", model_of(NAMES[name]), "near", 1e-5, generator, counts=(3,), others=5)
    assert moved == 0 and sum(tape.repetitions for tape in tapes) > 4


@pytest.mark.usefixtures("asked_each_time")
def test_a_kernel_that_looks_at_neighbours_is_found_out(tapes, monkeypatch):
    """Sabotage: the sums of a group change, in their last bits, with the first record of the pass."""
    honest = kernels.outer_products

    def looking(slopes, *rest, **more):
        return honest(slopes, *rest, **more) * (1 + 1e-6 * (1e6 * slopes.flatten()[0].nan_to_num()).sin())

    monkeypatch.setattr(kernels, "outer_products", looking)
    engine = LayerwiseEngine(model_of(NAMES["cnn"]), group_size=4, if_unlike="raise")
    with pytest.raises(DependsOnOthers, match="engine-not-alike"):
        summed(engine, batches(False)[0], 0.05)


def batches_of_side(side):
    offsets = ([0, 2, 5], [0, 4])
    return [GroupBatch({"image": torch.randn(each[-1], 2, 3, side, side)}, list(each)) for each in offsets]


@pytest.mark.long
def test_other_views_and_weights_elsewhere_are_recorded_anew(tapes):
    model = model_of(NAMES["cnn"])
    engine = LayerwiseEngine(model, group_size=4, if_unlike="raise")
    batch = batches(False)[0]
    more = GroupBatch({"image": batch.views["image"].repeat(1, 2, 1, 1, 1)[:, :3]}, batch.offsets)
    for given in (batch, more, batch):
        summed(engine, given, 0.05)
    assert len(tapes) == 2
    parameter = next(model.parameters())
    parameter.data = parameter.data.clone()
    summed(engine, batch, 0.05)
    assert len(tapes) == 3


class Forgetful(Tape):
    """Repeats all but the first operation that reads a number which changes."""

    def repeat(self):
        self.repetitions += 1
        with torch.no_grad():
            for operation in self.operations[len(self.operations) // 2 :]:
                operation()


def broken():
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")


FAILURES = {
    "differs": (Forgetful, r"\(a replay gave (other norms or losses|another sum)\)"),
    "fails": (broken, r"not permitted when stream is capturing\)"),
}


@pytest.mark.parametrize(("recording", "said"), FAILURES.values(), ids=FAILURES)
def test_a_recording_that_fails_or_differs_is_not_used(recording, said, tapes, monkeypatch):
    monkeypatch.setattr(layerwise, "recording_on", lambda device: recording)
    model, batch = model_of(NAMES["cnn"]), batches(False)[1]
    engine = LayerwiseEngine(model, group_size=4)
    with pytest.warns(Notice, match=f"{said}.*with the same result"):
        sums = summed(engine, batch, 0.05)
    expected = directly(model, batch, 0.05, monkeypatch)
    assert all(torch.equal(one, other) for one, other in zip(sums, expected, strict=True))
    assert torch.equal(summed(engine, batch, 0.05)[0], expected[0])  # and asks no more


@pytest.mark.parametrize("stale", ["views", "offsets", "clip"])
def test_an_input_that_is_not_filled_anew_is_found_out(stale, tapes, monkeypatch):
    """Sabotage: one of the inputs keeps what it had when the pass was recorded, or some records of an earlier pass."""
    honest = RepeatedPass.add

    def add(self, *given):
        if stale == "views":
            self._views = {name: view.clone() for name, view in self._views.items()}
        else:
            setattr(self, f"_{stale}", getattr(self, f"_{stale}").clone())
        return honest(self, *given)

    monkeypatch.setattr(RepeatedPass, "add", add)
    with pytest.warns(Notice, match="with the same result"):
        summed(LayerwiseEngine(model_of(NAMES["cnn"]), group_size=4), batches(False)[1], 0.05)


def test_a_cpu_records_nothing():
    assert recording_on(torch.device("cpu")) is None and callable(CudaGraph)


def test_a_recording_wrong_only_for_a_repeated_batch_is_caught(monkeypatch):
    """Sabotage: it remembers a batch, and adds it twice the next time, after others."""
    plain_kernels(monkeypatch)
    model = model_of(NAMES["cnn"])
    engine = LayerwiseEngine(model, group_size=4, if_unlike="go on")
    engine._padding, seen = Padding.on("cpu", 4, 16, 3 * 32 * 32), [None]
    zeros = engine.zeros().long()

    def remembering(batch, groups, clip, into):
        figures, mark = engine._add(batch, groups, clip, into), batch.views["image"].sum().item()
        if mark in seen[:-1] and mark != seen[-1]:  # the same batch twice in a row does not show it
            engine._add(batch, groups, clip, into)
        seen.append(mark)
        return figures

    views = batches(False)[0].views
    assert first_unlike(engine._add, engine._add, views, engine._padding, zeros) is None
    assert first_unlike(remembering, engine._add, views, engine._padding, zeros) == "a replay gave another sum"


def test_what_an_earlier_batch_left_in_a_pass_is_wiped(tapes, monkeypatch):
    """Fillers are blank: they hold nothing of records that a pass had before."""
    made, honest = [], RepeatedPass.__init__
    monkeypatch.setattr(RepeatedPass, "__init__", lambda self, *given: (made.append(self), honest(self, *given))[1])
    engine = LayerwiseEngine(model_of(NAMES["cnn"]), group_size=4, if_unlike="raise")
    large, small = batches(False, sizes=([5, 4, 4], [2]))
    for batch in (large, small):
        summed(engine, batch, 0.05)
    (repeated,) = made
    assert repeated._views["image"][:2].any() and not repeated._views["image"][2:].any()
