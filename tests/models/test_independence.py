"""Every way of mixing records that we could think of is caught, and sound layers pass."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.lora import LowRankUpdate
from dpfed.models.validation import check_independence, random_group

SIZE, TEXT = 8, (64, 6)


class Mixing(nn.Module):
    """What every layer below does with its rows ``(n, d)``, by name."""

    def __init__(self, how, gate=1.0):
        super().__init__()
        self.how, self.gate = how, gate
        self.kept = None
        self.calls = 0

    def forward(self, x):
        return self.how(self, x)


def learnt_gate(start):
    layer = Mixing(lambda self, x: x + self.gate * x.mean(0))
    layer.gate = nn.Parameter(torch.tensor(start))
    return layer


def memory(self, x):
    kept, self.kept = self.kept, x.detach().mean(0)
    return x if kept is None else x + kept


def seldom(self, x):
    return x + x.mean(0) if torch.rand(()) < 0.4 else x


def seldom_by(draw):
    return lambda self, x: x + x.mean(0) if draw() < 0.4 else x


def attention_over_the_batch(self, x):
    return x + torch.softmax(x @ x.T, 1) @ x


def ghost_norm(self, x):
    return torch.cat([part - part.mean(0) if len(part) == 8 else part for part in x.split(8)])


LAYERS = {
    "mean": lambda: Mixing(lambda self, x: x + x.mean(0)),
    "mean without gradient": lambda: Mixing(lambda self, x: x - x.mean(0).detach()),
    "gate 1e-4": lambda: Mixing(lambda self, x: x + 1e-4 * x.mean(0)),
    "gate 1e-6": lambda: Mixing(lambda self, x: x + 1e-6 * x.mean(0)),
    "gate 1e-6 without gradient": lambda: Mixing(lambda self, x: x + 1e-6 * x.mean(0).detach()),
    "gate 1e-20": lambda: Mixing(lambda self, x: x + 1e-20 * x.mean(0)),
    "learnt gate, 0 at first": lambda: learnt_gate(0.0),
    "learnt gate, 1e-6 at first": lambda: learnt_gate(1e-6),
    "LayerScale, 0 at first": lambda: learnt_gate([0.0] * 16),
    "batch statistics": lambda: nn.BatchNorm1d(16, track_running_stats=False),
    "running statistics": lambda: nn.BatchNorm1d(16),
    "only in training": lambda: Mixing(lambda self, x: x + x.mean(0) if self.training else x),
    "the neighbour": lambda: Mixing(lambda self, x: x + 0.1 * x.roll(1, 0)),
    "the largest": lambda: Mixing(lambda self, x: x / x.abs().max()),
    "the order": lambda: Mixing(lambda self, x: x.sort(0).values),
    "attention": lambda: Mixing(attention_over_the_batch),
    "how many there are": lambda: Mixing(lambda self, x: x + 1 / len(x)),
    "which place": lambda: Mixing(lambda self, x: x + torch.arange(len(x)).to(x)[:, None]),
    "more than 9 rows": lambda: Mixing(lambda self, x: x + x.mean(0) if len(x) > 9 else x),
    "more than 30 rows, gate 0 at first": lambda: Mixing(
        lambda self, x: x + self.gate * x.mean(0) if len(x) > 30 else x, nn.Parameter(torch.zeros(()))
    ),
    "parts of 8 rows": lambda: Mixing(ghost_norm),
    "the pass before": lambda: Mixing(memory),
    "at some random numbers of torch": lambda: Mixing(seldom),
    "at some random numbers of Python": lambda: Mixing(seldom_by(random.random)),
    "at some random numbers of NumPy": lambda: Mixing(seldom_by(np.random.rand)),
    "in the backward pass": lambda: Mixing(lambda self, x: Backwards.apply(x)),
    "the whole batch's scale": lambda: Mixing(lambda self, x: torch.fake_quantize_per_tensor_affine(x, _step(x), 0, -128, 127)),
}


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + gradient.mean(0)


def _step(x):
    return x.detach().abs().max().item() / 127


class Own(nn.Module):
    """A user's model of two towers, with a layer in the image tower, the text tower, or between both."""

    def __init__(self, image=None, text=None):
        super().__init__()
        self.register_buffer("temperature", torch.tensor(0.2))
        self.pixels, self.words = nn.Linear(3 * SIZE * SIZE, 16), nn.Embedding(TEXT[0], 16)
        self.image, self.text = image or nn.Identity(), text or nn.Identity()

    def forward(self, views):
        image, text = views["image"], views.get("text")
        z = {"image": self.image(self.pixels(image.flatten(0, 1).flatten(1))).unflatten(0, image.shape[:2])}
        if text is not None:
            z["text"] = self.text(self.words(text.flatten(0, 1)).mean(1)).unflatten(0, text.shape[:2])
        return z


@pytest.mark.parametrize("name", LAYERS)
def test_mixing_in_the_image_tower_is_caught(name):
    torch.manual_seed(0)
    with pytest.raises(UserError, match="model-(mixes|counts|buffer|keeps)-"):
        check_independence(Own(image=LAYERS[name]()), random_group(SIZE), largest=20)


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"gate 1e-20", "in the backward pass"}))
def test_mixing_in_the_text_tower_is_caught(name):
    """A derivative in tokens there is none: what float32 cannot show is not caught, and changes nothing in float32."""
    torch.manual_seed(0)
    with pytest.raises(UserError, match="model-(mixes|counts|buffer|keeps)-"):
        check_independence(Own(text=LAYERS[name]()), random_group(SIZE, TEXT), largest=40)


@pytest.mark.parametrize(
    "between",
    [
        lambda z: {"image": z["image"], "text": z["text"] + 1e-6 * z["image"].mean((0, 1))},
        lambda z: {"image": z["image"] + 1e-6 * z["text"].mean((0, 1)), "text": z["text"]},
        lambda z: {"image": z["image"] + z["image"].flip(1).roll(1, 0), "text": z["text"]},  # another record's other view
        lambda z: {**z, "target": z["image"] - z["image"].mean(0)},
    ],
)
def test_mixing_between_towers_and_views_is_caught(between):
    class Between(Own):
        def forward(self, views):
            return between(super().forward(views))

    with pytest.raises(UserError, match=r"^Between .*\[model-(mixes|counts)"):
        check_independence(Between(), random_group(SIZE, TEXT))


def test_the_layer_is_named_even_behind_a_closed_gate():
    with pytest.raises(UserError, match=r"^Mixing at 'image' .*\[model-mixes"):
        check_independence(Own(image=learnt_gate(0.0)), random_group(SIZE))


class Attention(nn.Module):
    """Within one record: over four parts of it."""

    def __init__(self):
        super().__init__()
        self.of = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)

    def forward(self, x):
        parts = x.view(len(x), 4, 4)
        return self.of(parts, parts, parts, need_weights=False)[0].flatten(1)


def low_rank():
    layer = nn.Linear(16, 16).requires_grad_(False)
    nn.utils.parametrize.register_parametrization(layer, "weight", LowRankUpdate(layer.weight, 1, (0,), 2, 1.0))
    return layer


SOUND = {
    "GroupNorm": lambda: nn.GroupNorm(4, 16),
    "LayerNorm": lambda: nn.LayerNorm(16),
    "attention": Attention,
    "adapters": low_rank,
    "dropout": lambda: nn.Dropout(0.5),
    "a gate of its own": lambda: Mixing(lambda self, x: x + 1e-6 * x.mean(1, keepdim=True)),
    "random noise": lambda: Mixing(lambda self, x: x + torch.randn_like(x)),
    "noise by Python": lambda: Mixing(lambda self, x: x * random.random()),
    "float64 inside": lambda: Mixing(lambda self, x: F.normalize(x.double(), dim=1).float()),
    "float32 only": lambda: Mixing(lambda self, x: F.linear(x.float(), torch.ones(16, 16))),
    "in place": lambda: Mixing(lambda self, x: x.mul_(2).clamp_(-1, 1)),
    "recurrent, packed by length": lambda: Mixing(packed),
    "not finite": lambda: Mixing(lambda self, x: x / 0),
}


def packed(self, x):
    if self.kept is None:
        torch.manual_seed(1)
        self.kept = nn.GRU(4, 16).to(x)
    lengths = 1 + (x[:, 0] > 0).long() + (x[:, 1] > 0)
    parts = nn.utils.rnn.pack_padded_sequence(x.view(len(x), 4, 4), lengths.cpu(), batch_first=True, enforce_sorted=False)
    return self.kept(parts)[1][0]


@pytest.mark.parametrize("name", SOUND)
def test_sound_layers_pass(name):
    check_independence(Own(image=SOUND[name](), text=SOUND[name]()), random_group(SIZE, TEXT), largest=20)


@pytest.mark.parametrize("normalisation", ["group", "layer", "batch"])
@pytest.mark.parametrize("kind", ["image", "image-text"])
def test_our_own_models_pass_in_a_large_group(kind, normalisation):
    config = ModelConfig(kind=kind, width=8, text_width=16, normalisation=normalisation)
    model = build_model(config, ObjectiveConfig(), size=16)
    check_independence(model, random_group(16, (1024, 24) if kind == "image-text" else None), largest=24)


def random_group_of_its_own():
    with torch.random.fork_rng():
        return random_group(SIZE)


def test_nothing_of_the_model_and_of_the_process_is_changed():
    model = Own(image=nn.Sequential(nn.Dropout(0.5), learnt_gate(0.1)))
    model.image[0].eval()
    model.pixels.weight.grad = torch.ones_like(model.pixels.weight)
    for made in (model, Own(image=nn.Dropout(0.5))):
        before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
        state = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        modes = [module.training for module in made.modules()]
        try:
            check_independence(made, random_group_of_its_own())
        except UserError:
            assert made is model
        assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
        assert torch.equal(state[0], torch.random.get_rng_state())
        assert (random.getstate(), np.random.get_state()[1].tolist()) == state[1:]
        assert modes == [module.training for module in made.modules()]
        assert all(parameter.requires_grad for parameter in made.parameters())
    assert bool((model.pixels.weight.grad == 1).all()) and model.words.weight.grad is None
