"""The target network: never trained, moved by the released weights alone, and sent with them."""

import pytest
import torch
from torch.nn.functional import normalize

from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.models.parameters import BroadcastVector, TrainableVector
from dpfed.models.validation import check_independence, random_group, validate
from dpfed.objectives.byol import group_loss

SMALL = ModelConfig(width=8, embedding=16, head_hidden=16)


def built(seed=0, config=SMALL, momentum=0.9):
    torch.manual_seed(seed)
    return build_model(config, ObjectiveConfig(name="byol", momentum=momentum))


def leading(model):
    return torch.cat([parameter.detach().flatten() for part in (model.encoder, model.head) for parameter in part.parameters()])


def target(model):
    return torch.cat([weights.flatten() for _, weights in model.moving_weights()])


@pytest.mark.parametrize("image", ["cnn", "resnet18"])
def test_the_target_starts_as_a_copy_of_its_own_and_says_what_the_head_says(image):
    model = built(config=SMALL.model_copy(update={"image": image}))
    assert torch.equal(target(model), leading(model))
    with torch.no_grad():
        model.encoder.get_parameter(next(iter(dict(model.encoder.named_parameters())))).add_(1.0)
    assert not torch.equal(target(model), leading(model))
    model, views = built(config=SMALL.model_copy(update={"image": image})), random_group(16)
    embeddings = model(views)
    for view in (0, 1):
        images = views["image"][:, view]
        assert torch.allclose(embeddings["target"][:, view], model.embed_images(images), atol=1e-5)
        predicted = normalize(model.predictor(model.head(model.encoder(images))), dim=1)
        assert torch.allclose(embeddings["image"][:, view], predicted, atol=1e-5)
    assert (embeddings["image"] - embeddings["target"]).norm() > 0.1
    validate(model)
    check_independence(model, views)


def test_the_target_is_not_trained_but_matters():
    model, views, present = built(), random_group(16), torch.ones(3, dtype=torch.bool)
    trained = sum(p.numel() for part in (model.encoder, model.head, model.predictor) for p in part.parameters())
    assert TrainableVector(model).numel == trained
    before = group_loss(model(views), present)
    before.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(weights.grad is None and not weights.requires_grad for _, weights in model.moving_weights())
    for _, weights in model.moving_weights():
        weights.mul_(0.5).add_(0.01)
    assert group_loss(model(views), present) != before


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_target_is_the_moving_average_of_the_weights(momentum):
    model = built(momentum=momentum)
    expected = leading(model).double()
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model.move()
        expected = momentum * expected + (1 - momentum) * leading(model).double()
        assert torch.allclose(target(model).double(), expected, atol=1e-6)


def test_what_is_sent_makes_another_worker_the_same():
    model, other = built(0), built(1)
    with torch.no_grad():
        model.encoder.stages[0].weight.add_(1.0)
    model.move()
    assert BroadcastVector(model).numel == TrainableVector(model).numel + target(model).numel()
    BroadcastVector(other).assign(BroadcastVector(model).gather())
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
