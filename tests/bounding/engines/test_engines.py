"""Engines against a float64 oracle, and what must hold for any engine."""

import math

import pytest
import torch

from dpfed.bounding.bounded_sum import BoundedSum
from dpfed.bounding.clipping import clip_factors
from dpfed.bounding.engines import (
    ENGINES,
    GroupBatch,
    LayerwiseEngine,
    LoopEngine,
    build_engine,
    choose_engine,
    require_fitting,
    shared_pass,
)
from dpfed.bounding.layer_rules import term
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.parameters import TrainableVector
from dpfed.objectives.infonce import group_loss

STARTS = [0, 4, 5, 12, 14, 20]  # groups of 4, 1, 7, 2 and 6 records
MODELS = {
    "cnn": ModelConfig(width=8, embedding=16, head_hidden=16),
    "pyramid": ModelConfig(width=8, embedding=16, head_hidden=16, features="pyramid"),
    "resnet18": ModelConfig(image="resnet18", width=8, embedding=16, head_hidden=16),
    "two towers": ModelConfig(
        kind="image-text", width=8, text_width=16, text_layers=1, vocabulary=128, embedding=16, context=8
    ),
}
WITH_TEMPERATURE = ObjectiveConfig(learn_temperature=True)


def engine_of(name, model):
    """Whether groups are computed alike is asked in `test_others_stay.py`."""
    return ENGINES[name](model, **({"if_unlike": "go on"} if name == "layerwise" else {}))


def batch_for(config: ModelConfig, count=STARTS[-1]) -> GroupBatch:
    generator = torch.Generator().manual_seed(3)
    views = {"image": torch.randn(count, 3, 3, 16, 16, generator=generator)}
    if config.kind == "image-text":
        views["text"] = torch.randint(1, 128, (count, 1, 8), generator=generator)
    return GroupBatch(views, STARTS)


def oracle(model, batch, clip_norm):
    """The definition, in float64: sum over groups of clipped gradients."""
    return sum(flat * min(1.0, clip_norm / max(flat.norm().item(), 1e-30)) for flat in group_gradients(model, batch))


def group_gradients(model, batch):
    """The gradients of equation 12 or 15, written down independently."""
    model = model.double()
    flat = []
    for first, end in zip(batch.offsets, batch.offsets[1:], strict=False):
        views = {k: v[first:end].double() if v.is_floating_point() else v[first:end] for k, v in batch.views.items()}
        z = model(views)
        if "text" in z:
            pairs = [(z["image"][:, 0], z["text"]), (z["text"][:, 0], z["image"])]
        else:
            image = z["image"]
            pairs = [(image[:, 0], image[:, 1:]), (image[:, 1], torch.stack([image[:, 0], image[:, 2]], 1))]
        loss = 0
        for anchor, others in pairs:
            for i in range(len(anchor)):
                positive = torch.exp(anchor[i] @ others[i, 0] / model.temperature)
                negatives = [
                    torch.exp(anchor[i] @ others[j, v] / model.temperature)
                    for j in range(len(anchor))
                    for v in range(others.shape[1])
                    if j != i
                ]
                loss = loss - torch.log(positive / (positive + sum(negatives)))
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        with_zeros = zip(gradients, model.parameters(), strict=True)
        flat.append(torch.cat([torch.zeros(p.numel()).double() if g is None else g.flatten() for g, p in with_zeros]))
    model.float()
    return flat


@pytest.fixture(params=list(MODELS))
def case(request):
    config = MODELS[request.param]
    return build_model(config, WITH_TEMPERATURE), batch_for(config)


@pytest.mark.long
def test_every_engine_agrees_with_the_oracle(case):
    model, batch = case
    for clip_norm in (0.05, 1e3):
        expected = oracle(model, batch, clip_norm)
        for name in ENGINES:
            into = TrainableVector(model).zeros()
            norms = engine_of(name, model).add_clipped(batch, clip_norm, into)
            assert (into.double() - expected).norm() / expected.norm() < 1e-4
            assert len(norms) == 4  # the group of one has no gradient
            assert all(norms < 1e3) and all(norms > 0.05)  # so the two clip norms test both sides


@pytest.mark.parametrize("name", ENGINES)
def test_any_number_of_lanes_agrees_with_the_oracle_twice(case, name, monkeypatch):
    model, batch = case
    expected = oracle(model, batch, 0.05)
    for threads in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        engine = engine_of(name, model)
        for _ in range(2):  # threads must start from zero each time
            into = TrainableVector(model).zeros()
            engine.add_clipped(batch, 0.05, into)
            assert (into.double() - expected).norm() / expected.norm() < 1e-4


def test_layerwise_passes_agree_with_the_loop(case):
    model, batch = case
    sums, norms = [], []
    shared = (LayerwiseEngine(model, records=records, if_unlike="go on") for records in (1, 6, 100))
    for engine in (LoopEngine(model), *shared):
        sums.append(TrainableVector(model).zeros())
        norms.append(engine.add_clipped(batch, 0.05, sums[-1]).sort().values)
    for other, of_other in zip(sums[1:], norms[1:], strict=True):
        assert (norms[0] / of_other - 1).abs().max() < 1e-5
        assert (sums[0] - other).norm() / sums[0].norm() < 5e-5


class Wide(torch.nn.Module):
    """Millions of equal gradient entries: the worst case for a sum of squares in float32."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2_400_000))
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        x = views["image"].flatten(2)[:, :, :2]
        return {"image": torch.nn.functional.normalize(x + self.weight.sum(), dim=2)}


def test_large_models_stay_within_the_clip_norm_in_float32():
    batch = GroupBatch({"image": torch.randn(4, 2, 3, 4, 4)}, [0, 4])
    model = Wide()
    into = TrainableVector(model).zeros()
    norms = LoopEngine(model).add_clipped(batch, 1e-4, into)
    assert norms.item() > 1e-4
    assert into.double().norm().item() <= 1e-4
    whole = TrainableVector(model).zeros()
    LoopEngine(model).add_clipped(batch, 1e6, whole)
    assert norms.item() == pytest.approx(whole.double().norm().item(), rel=3.1e-5)


@pytest.mark.parametrize("name", list(ENGINES))
def test_an_engine_adds_to_its_sum_and_repeats_every_bit(case, name):
    model, batch = case
    engine, one, two = engine_of(name, model), TrainableVector(model).zeros(), TrainableVector(model).zeros()
    engine.add_clipped(batch, 1.0, one)
    engine.add_clipped(batch, 1.0, two)
    assert torch.equal(one, two)
    engine.add_clipped(batch, 1.0, two)
    assert torch.allclose(two, 2 * one, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("name", list(ENGINES))
def test_a_gradient_that_is_not_finite_contributes_nothing(name, poison):
    config = MODELS["cnn"]
    model, batch = build_model(config, ObjectiveConfig()), batch_for(config)
    clean = TrainableVector(model).zeros()
    rest = GroupBatch({k: v[4:] for k, v in batch.views.items()}, [s - 4 for s in STARTS[1:]])
    engine_of(name, model).add_clipped(rest, 1.0, clean)
    batch.views["image"][0] = poison
    poisoned = TrainableVector(model).zeros()
    norms = engine_of(name, model).add_clipped(batch, 1.0, poisoned)
    assert torch.isfinite(poisoned).all()
    if not torch.isfinite(norms).all():
        assert torch.allclose(poisoned, clean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", list(ENGINES))
def test_one_groups_contribution_never_exceeds_the_clip_norm(case, name):
    model, batch = case
    for first, end in ((0, 1), (2, 3), (4, 5)):
        part = slice(STARTS[first], STARTS[end])
        one = GroupBatch({k: v[part] for k, v in batch.views.items()}, [0, STARTS[end] - STARTS[first]])
        into = TrainableVector(model).zeros()
        engine_of(name, model).add_clipped(one, 0.01, into)
        assert into.double().norm() <= 0.01


def test_bf16_forward_still_clips_in_float32(case):
    model, batch = case
    into = TrainableVector(model).zeros()
    LoopEngine(model, "bf16").add_clipped(batch, 0.05, into)
    expected = oracle(model, batch, 0.05)
    assert torch.nn.functional.cosine_similarity(into.double(), expected, dim=0) > 0.9


@pytest.mark.parametrize("name", list(ENGINES))
def test_no_group_and_groups_of_one_give_zeros(name):
    model = build_model(MODELS["cnn"], ObjectiveConfig())
    for offsets in ([0], [0, 1, 2]):
        into = TrainableVector(model).zeros()
        engine_of(name, model).add_clipped(GroupBatch({"image": torch.randn(2, 2, 3, 16, 16)}, offsets), 1.0, into)
        assert not into.any()


def test_frozen_parameters_are_left_out():
    model = build_model(MODELS["cnn"], ObjectiveConfig())
    model.encoder.requires_grad_(False)
    sums = {}
    for name, engine in ENGINES.items():
        sums[name] = TrainableVector(model).zeros()
        engine(model).add_clipped(batch_for(MODELS["cnn"]), 1.0, sums[name])
    assert len(sums["loop"]) == sum(p.numel() for p in model.head.parameters())
    assert all((other - sums["loop"]).norm() < 1e-4 * sums["loop"].norm() for other in sums.values())


class Turned(torch.nn.Module):
    """Puts views before records; with two layers that are one, or none that matters."""

    def __init__(self, turn=False, twice=False, idle=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)
        self.turn, self.twice, self.idle = turn, twice, idle
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        x = views["image"].mean((3, 4))
        turned = x.transpose(0, 1).flatten(0, 1)
        x = self.first(turned).unflatten(0, x.shape[1::-1]).transpose(0, 1) if self.turn else self.first(x)
        x = x if self.idle else self.second(x.relu())
        x = self.second(x.relu()) if self.twice else x
        return {"image": torch.nn.functional.normalize(x, dim=2)}


def test_a_model_unfit_for_layerwise_is_left_to_the_loop():
    batch = batch_for(MODELS["cnn"])
    assert choose_engine(Turned(), batch) == "layerwise"
    require_fitting(Turned(), batch)
    few = GroupBatch({"image": torch.randn(4, 2, 3, 4, 4)}, [0, 4])
    for odd, views in ((Turned(turn=True), batch), (Wide(), few)):
        assert choose_engine(odd, views) == "loop"
        with pytest.raises(UserError, match="'auto' or 'loop'|'loop' or 'auto'"):
            require_fitting(odd, views)
    for odd in (Turned(twice=True), Turned(idle=True), Wide()):
        with pytest.raises(UserError, match=r"bounding.engine.*\[layer-"):
            LayerwiseEngine(odd).add_clipped(batch, 1.0, TrainableVector(odd).zeros())


class Called(torch.nn.Module):
    """Calls torch in a way for which no rule was written, drops at random, or computes with a constant in float32."""

    def __init__(self, how):
        super().__init__()
        self.how, self.first, self.scale = how, torch.nn.Linear(3, 4), torch.nn.Parameter(torch.ones(4))
        self.drop = torch.nn.Dropout(0.5 if how == "dropout" else 0.0)
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        x = self.first(views["image"].mean((3, 4))).flatten(0, 1)
        if self.how == "shift alone":
            x = torch.nn.functional.group_norm(x, 2, bias=self.scale)
        elif self.how == "keyword":
            x = x.mul(other=self.scale)
        elif self.how == "float32":
            x = x * self.scale @ torch.eye(4)
        else:
            x = x * self.scale
        return {"image": torch.nn.functional.normalize(self.drop(x), dim=1).unflatten(0, views["image"].shape[:2])}


@pytest.mark.parametrize("how", ["shift alone", "keyword", "float32"])
def test_a_model_that_layerwise_cannot_run_is_left_to_the_loop(how):
    model, batch = Called(how), batch_for(MODELS["cnn"])
    assert choose_engine(Called("plainly"), batch) == "layerwise" and choose_engine(model, batch) == "loop"
    with pytest.raises(UserError, match="engine-fails"):
        require_fitting(model, batch)


def test_dropout_is_named_as_the_reason_and_is_no_difference():
    told = []
    assert choose_engine(Called("dropout"), batch_for(MODELS["cnn"]), told=told.append) == "loop" and "dropout" in told[0]
    require_fitting(Called("dropout"), batch_for(MODELS["cnn"]))  # the engine then takes one group at a time


def test_layers_so_wide_that_norms_come_from_gram_matrices_fit(monkeypatch):
    """What is added to such a norm for the rounding of float32 is no difference between the engines."""
    model = build_model(ModelConfig(width=8, embedding=16, head_hidden=1024), ObjectiveConfig())
    wide = torch.nn.Sequential(torch.nn.Linear(model.head[0].in_features, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    model.head = torch.nn.Sequential(wide, model.head[-1])
    seen = []
    monkeypatch.setattr(term, "gram_squares", lambda *rows, real=term.gram_squares: seen.append(rows) or real(*rows))
    require_fitting(model, batch_for(MODELS["cnn"]))
    assert seen


def test_groups_whose_factors_are_swapped_are_noticed(monkeypatch):
    """The sum of whole gradients would be the same: only clipped ones tell."""
    model, batch, told = build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"]), []
    monkeypatch.setattr(shared_pass, "clip_factors", lambda norms, clip: clip_factors(norms, clip).roll(1))
    assert choose_engine(model, batch, told=told.append) == "loop" and "other clipped gradients" in told[0]
    assert "set it" not in told[0]  # nobody set it
    with pytest.raises(UserError, match="engine-differs"):
        require_fitting(model, batch)


def test_an_engine_too_large_for_the_memory_is_not_chosen(monkeypatch):
    model, batch, told = build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"]), []

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LayerwiseEngine, "add_clipped", full)
    assert choose_engine(model, batch, told=told.append) == "loop" and "too little memory" in told[0]
    monkeypatch.setattr(LoopEngine, "add_clipped", full)
    with pytest.raises(torch.OutOfMemoryError):
        choose_engine(model, batch)


def test_a_short_run_tries_nothing(monkeypatch):
    monkeypatch.setattr("dpfed.bounding.engines.choice._refusal", lambda *_: pytest.fail("tried"))
    assert choose_engine(build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"]), groups=20) == "loop"


def test_clip_factors():
    norms = torch.tensor([0.0, 0.5, 1.0, 2.0, math.inf, math.nan], dtype=torch.float64)
    factors = clip_factors(norms, 1.0)
    assert factors[:2].tolist() == [1, 1] and factors[4:].tolist() == [0, 0]
    assert (norms * factors)[:4].max() <= 1.0 and factors[3] == pytest.approx(0.5, rel=1e-4)
    short = norms.float() * (1 - 1e-3)  # what float32 sums may lose
    assert (norms * clip_factors(short, 1.0))[:4].max() <= 1.0


def test_owners_sums_keep_the_larger_sensitivity():
    both = BoundedSum(torch.ones(3), 2.0, 4) + BoundedSum(torch.ones(3), 2.0, 5)
    assert (both.values.tolist(), both.sensitivity, both.groups) == ([2, 2, 2], 2.0, 9)
    with pytest.raises(UserError, match="bounding-other-models"):
        BoundedSum(torch.ones(3), 2.0, 4) + BoundedSum(torch.ones(4), 2.0, 4)


@pytest.mark.parametrize(
    ("refusal", "why"), [("It has no rule: set 'loop'. [a-code]", "It has no rule"), ("No rule fits. [a-code]", "No rule fits")]
)
def test_the_choice_always_says_why(monkeypatch, refusal, why):
    monkeypatch.setattr("dpfed.bounding.engines.choice._refusal", lambda *_: UserError(refusal))
    told = []
    choose_engine(build_model(MODELS["cnn"], ObjectiveConfig()), batch_for(MODELS["cnn"]), told=told.append)
    assert told == [f"engine: loop; {why}"]


def test_an_engine_of_an_unknown_name_is_not_built():
    with pytest.raises(ValueError, match="loop or layerwise, got 'looop'"):
        build_engine("looop", build_model(MODELS["cnn"], ObjectiveConfig()), "fp32", group_loss, 4)
