"""The engines of `batch`, `sample` and `logit` against plain autograd in float64, gradient by gradient."""

import pytest
import torch

from dpfed.baselines.whole_batch.jacobian_norms import ExactNorms, contrasts
from dpfed.baselines.whole_batch.jacobians import Jacobians
from dpfed.baselines.whole_batch.pair_engines import LogitEngine, SampleEngine
from dpfed.bounding.clipping import clip_factors
from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.engines.gradient_cache import BatchEngine
from dpfed.building.plan import plan_of
from dpfed.config import ModelConfig, ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.objectives import OBJECTIVES
from dpfed.objectives.infonce import group_loss
from tests.bounding.engines.test_engines_towers import build
from tests.models.conftest import SMALL
from tests.sparing import halved, sparing

COUNT = 5
MODELS = {
    "cnn": ModelConfig(width=8, embedding=6, head_hidden=10),
    "resnet18": ModelConfig(image="resnet18", width=4, embedding=4, head_hidden=6),
    "two towers": ModelConfig(kind="image-text", width=8, text_width=16, text_layers=1, vocabulary=128, embedding=6, context=8),
}
OBJECTIVE = ObjectiveConfig(temperature=0.3)
LOSSES = [name for name, loss in OBJECTIVES.items() if not loss.reads_labels]  # a whole batch hands a loss none


def case(name, augmentations=0):
    config = MODELS[name]
    generator = torch.Generator().manual_seed(3)
    text = config.kind == "image-text"
    views = {"image": torch.randn(COUNT, (1 if text else 2) + augmentations, 3, 16, 16, generator=generator)}
    if text:
        views["text"] = torch.randint(1, 128, (COUNT, 1 + augmentations, 8), generator=generator)
    return build_model(config, OBJECTIVE), GroupBatch(views, [0, COUNT])


def directions(z):
    """Anchors ``(n, D)`` and candidates ``(n, m, D)`` of equations 9, 12 and 15, written down independently."""
    image = z["image"]
    if "text" in z:
        return [(image[:, 0], z["text"]), (z["text"][:, 0], image)]
    return [(image[:, 0], image[:, 1:]), (image[:, 1], torch.cat([image[:, :1], image[:, 2:]], dim=1))]


def in_float64(model, batch):
    model.double()
    views = {k: v.double() if v.is_floating_point() else v for k, v in batch.views.items()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    return model(views), parameters


def flat_gradient(value, parameters):
    gradients = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def clipped(gradient, clip_norm):
    return gradient * min(1.0, clip_norm / gradient.norm().item())


def logit_parts(model, batch, one_sided=False, spread_out=0.0):
    """Every pair's weight and gradient: equation 5 of the Logit-DP paper, at a temperature."""
    z, parameters = in_float64(model, batch)
    parts = []
    for anchors, candidates in directions(z)[: 1 if one_sided else 2]:
        n, m, _ = candidates.shape
        for i in range(n):
            pairs = [(i, 0)] + [(j, v) for j in range(n) if j != i for v in range(m)]
            cosines = torch.stack([anchors[i] @ candidates[j, v] for j, v in pairs])
            weights = (cosines / OBJECTIVE.temperature).softmax(0)
            weights[0] -= 1
            weights = weights / OBJECTIVE.temperature
            weights[1:] += spread_out * 2 * cosines[1:] / ((n - 1) * m)
            parts += [
                (weight.item(), flat_gradient(cosine, parameters)) for cosine, weight in zip(cosines, weights, strict=True)
            ]
    model.float()
    return parts


def norms_of(parts):
    return torch.stack([gradient.norm() for _, gradient in parts])


def summed(parts, clip_norm):
    return sum(weight * clipped(gradient, clip_norm) for weight, gradient in parts)


def sample_parts(model, batch):
    """Every record's gradient."""
    z, parameters = in_float64(model, batch)
    losses = 0
    for anchors, candidates in directions(z):
        similarity = torch.einsum("id,jvd->ijv", anchors, candidates) / OBJECTIVE.temperature
        others = ~torch.eye(COUNT, dtype=torch.bool)
        positive = similarity[:, :, 0].diagonal()
        negatives = torch.stack([similarity[i][others[i]].exp().sum() for i in range(COUNT)])
        losses = losses - torch.log(positive.exp() / (positive.exp() + negatives))
    gradients = [flat_gradient(loss, parameters) for loss in losses]
    model.float()
    return [(1.0, gradient) for gradient in gradients]


def run(engine, batch, clip_norm):
    into = engine.zeros()
    norms = engine.add_clipped(batch, clip_norm, into)
    return into.double(), norms


def assert_close(result, expected):
    assert (result - expected).norm() / expected.norm() < 1e-4


@pytest.mark.parametrize(("name", "loss", "microbatch"), halved(MODELS, LOSSES, [2, 100]))
def test_the_batch_engine_is_one_gradient_of_the_mean_loss(name, loss, microbatch):
    config, batch = MODELS[name], case(name)[1]
    model = build_model(config, ObjectiveConfig(name=loss, learn_temperature=loss in ("infonce", "siglip")))
    z, parameters = in_float64(model, batch)
    named = ObjectiveConfig(name=loss).group_loss()
    value = named(z, torch.ones(COUNT, dtype=torch.bool), model.temperature, model.bias)
    expected = flat_gradient(value / COUNT, parameters)
    model.float()
    engine = BatchEngine(model, "fp32", named, microbatch)
    for clip_norm in (0.3 * expected.norm().item(), 1e6):
        gradient, norms = run(engine, batch, clip_norm)
        assert_close(gradient, clipped(expected, clip_norm))
        assert norms.tolist() == pytest.approx([expected.norm().item()], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("augmentations", [0, 1])
@pytest.mark.parametrize("name", sparing(MODELS, "cnn", "two towers"))
def test_exact_logit_clipping_is_the_loop_over_pairs(name, augmentations):
    model, batch = case(name, augmentations)
    for options in ({}, {"one_sided": True, "spread_out": 0.7}):
        parts = logit_parts(model, batch, **options)
        for clip_norm in (norms_of(parts).median().item(), 1e6):
            gradient, norms = run(LogitEngine(model, COUNT, "exact", **options), batch, clip_norm)
            assert_close(gradient, summed(parts, clip_norm))
            if not augmentations:  # otherwise the engine also looks at an anchor's own further views, which weigh nothing
                torch.testing.assert_close(norms.sort().values.double(), norms_of(parts).sort().values, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("augmentations", "name"), halved([0, 1], MODELS))
def test_exact_sample_clipping_is_the_loop_over_records(name, augmentations):
    model, batch = case(name, augmentations)
    parts = sample_parts(model, batch)
    for clip_norm in (norms_of(parts).median().item(), 1e6):
        gradient, norms = run(SampleEngine(model, COUNT, "exact"), batch, clip_norm)
        assert_close(gradient, summed(parts, clip_norm))
        torch.testing.assert_close(norms, norms_of(parts), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", [LogitEngine, SampleEngine])
@pytest.mark.parametrize("name", sparing(MODELS, "cnn", "two towers"))
def test_without_clipping_the_sum_is_the_objectives_gradient(name, kind):
    model, batch = case(name, augmentations=2)
    z, parameters = in_float64(model, batch)
    loss = group_loss(z, torch.ones(COUNT, dtype=torch.bool), model.temperature, None)
    expected = flat_gradient(loss, parameters)
    model.float()
    for norms in ("exact", "bound"):
        assert_close(run(kind(model, COUNT, norms), batch, 1e9)[0], expected)


@pytest.mark.parametrize(("augmentations", "kind", "name"), halved([0, 1], [LogitEngine, SampleEngine], MODELS))
def test_bounds_are_never_below_the_norms_nor_far_above(name, kind, augmentations):
    model, batch = case(name, augmentations)
    exact, bound = (run(kind(model, COUNT, norms), batch, 1.0)[1] for norms in ("exact", "bound"))
    assert (bound >= exact * (1 - 1e-6)).all()
    assert bound.median() < 4 * exact.median()
    if name == "two towers" and kind is LogitEngine:  # the two parts are orthogonal: nothing is lost
        torch.testing.assert_close(bound, exact, rtol=1e-3, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("adaptation", [{}, {"image": "frozen", "text": "full"}], ids=str)
def test_adapted_open_clip_towers_agree_with_the_loop_over_pairs(tmp_path, adaptation):
    model = build(tmp_path, SMALL, OBJECTIVE, **adaptation)
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(3, 1, 3, 32, 32, generator=generator)
    batch = GroupBatch({"image": images, "text": torch.randint(1, 49407, (3, 1, 16), generator=generator)}, [0, 3])
    parts = logit_parts(model, batch)
    clip_norm = norms_of(parts).median().item()
    expected = summed(parts, clip_norm)
    for norms in ("exact", "bound"):
        assert_close(run(LogitEngine(model, 3, norms), batch, clip_norm)[0], expected)


def test_auto_is_exact_where_a_full_batch_is_small():
    model, batch = case("cnn")
    small, large = LogitEngine(model, COUNT), LogitEngine(model, 100_000)
    for engine in (small, large):
        run(engine, batch, 1.0)
    assert (small.norms, large.norms) == ("exact", "bound")


def test_a_weight_used_outside_its_layer_keeps_its_gradient():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(12, 12)

        def forward(self, x):
            return torch.relu(self.layer(x.flatten(1)[:, :12])) @ self.layer.weight

    model, _ = case("cnn")
    model.encoder, model.head = Tied(), torch.nn.Linear(12, 6)
    batch = case("cnn")[1]
    gradient, _ = run(LogitEngine(model, COUNT, "exact"), batch, 0.5)
    assert_close(gradient, summed(logit_parts(model, batch), 0.5))


@pytest.mark.parametrize("kind", [lambda m: LogitEngine(m, 4), lambda m: BatchEngine(m, "fp32", group_loss, 4)])
def test_a_model_that_draws_random_numbers_is_refused(kind):
    model, _ = case("cnn")
    model.head.append(torch.nn.Dropout(0.1))
    with pytest.raises(UserError, match=r"'head.3' .*\[engine-random"):
        kind(model)


@pytest.mark.parametrize("method", ["sample", "logit"])
@pytest.mark.parametrize(
    "section, message",
    [
        ({"objective": {"name": "siglip"}}, "infonce"),
        ({"objective": {"learn_temperature": True}}, "baseline-temperature"),
        ({"training": {"precision": "bf16"}}, "baseline-precision"),
        ({"bounding": {"options": {"norms": "fast"}}}, "'norms': expected 'auto', 'exact' or 'bound'"),
        ({"bounding": {"options": {"slots": 3}}}, "slots"),
    ],
    ids=str,
)
def test_what_a_method_cannot_bound_is_refused(method, section, message):
    tree = {"privacy": {"batch": 8, "noise_multiplier": 1.0}, **section}
    tree["bounding"] = {"method": method, **section.get("bounding", {})}
    with pytest.raises(UserError, match=message):
        plan_of(100, parse_config(tree))


@pytest.mark.long
@pytest.mark.parametrize("apart, clip_norm", [(1e-2, 1e-2), (1e-3, 1e-5), (1e-4, 1e-6)], ids=str)
def test_pairs_that_nearly_cancel_stay_within_the_clip_norm(apart, clip_norm):
    # Two nearly equal views: the two parts of their similarity's gradient are long and opposite, and what float32 leaves of
    # their sum is not what it leaves of its norm.
    for seed in range(10):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))

        def embed(inputs, network=network):
            return torch.nn.functional.normalize(network(inputs), dim=1)

        inputs = torch.randn(1, 32) + apart * torch.randn(4, 32)
        jacobians = Jacobians(network, embed, inputs[:1])
        rows, blocks = jacobians.all(inputs)
        rows, contrast = rows.double(), contrasts({"image": (2, 2)}, rows.device)[0]
        exact = ExactNorms({"image": blocks}, {"image": slice(0, 4)}, rows.device)
        norms = exact.of_pairs(rows, contrast)
        for pair in torch.eye(4, dtype=torch.float64).view(4, 2, 2, 1):
            whole = contrast.cotangents(rows, pair)
            of_pair, of_sum = norms[pair.bool()], exact.of_sums(iter([whole[None]]))
            for norm in (of_pair, of_sum):  # as `logit` and as `sample` take it
                parts = {f"model.{name}": torch.zeros_like(p).double() for name, p in network.named_parameters()}
                jacobians.pull_back(inputs, clip_factors(norm, clip_norm) * whole, parts)
                assert torch.cat([part.flatten() for part in parts.values()]).norm() <= clip_norm
