"""Losses, gradients and similarities against plain autograd, one record at a time, on the model's own definition."""

import pytest
import torch

from dpfed.audit.signals import signals_of
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.objectives.infonce import group_loss

DRAWS, RECORDS, REFERENCES = 3, 4, 5


def views(records: int, kind: str) -> dict[str, torch.Tensor]:
    made = {"image": torch.randn(records, DRAWS, 2 if kind == "image" else 1, 3, 16, 16)}
    if kind == "image-text":
        made["text"] = torch.randint(1, 64, (records, DRAWS, 1, 6))
    return made


@pytest.fixture(params=["image", "image-text"])
def seen(request):
    small = {"width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 64, "context": 6, "embedding": 8, "head_hidden": 8}
    model = build_model(ModelConfig(kind=request.param, **small), ObjectiveConfig())
    records, references = views(RECORDS, request.param), views(REFERENCES, request.param)
    each = ({name: view[index] for name, view in records.items()} for index in range(RECORDS))
    model.train()
    signals = signals_of(model, group_loss, each, references)
    assert model.training
    return model, records, references, signals


def test_losses_and_gradients_are_those_of_the_groups(seen):
    model, records, references, signals = seen
    parameters = list(model.parameters())
    for index in range(RECORDS):
        total = 0.0
        for draw in range(DRAWS):
            embeddings = model({name: view[index : index + 1, draw] for name, view in records.items()})
            known = model({name: view[:, draw] for name, view in references.items()})
            group = {name: torch.cat([embeddings[name], known[name].detach()]) for name in embeddings}
            loss = group_loss(group, torch.ones(1 + REFERENCES, dtype=torch.bool), model.temperature)
            assert signals.losses[index, draw] == pytest.approx(float(loss.detach()), rel=1e-4)
            total = total + loss / DRAWS
        norms = [slope.norm().log() for slope in torch.autograd.grad(total, parameters)]
        torch.testing.assert_close(signals.gradients[index], torch.stack(norms), rtol=1e-3, atol=1e-3)


def test_similarities_are_the_cosines_of_a_record_s_own_views(seen):
    model, records, _, signals = seen
    for index in range(RECORDS):
        embeddings = {
            name: z.detach().flatten(0, 1) for name, z in model({name: view[index] for name, view in records.items()}).items()
        }
        expected = {}
        for a, b in [("image", "image"), ("image", "text"), ("text", "text")]:
            if a in embeddings and b in embeddings:
                pairs = [(i, j) for i in range(len(embeddings[a])) for j in range(len(embeddings[b])) if a != b or i < j]
                expected[f"{a}-{b}"] = sorted((float(embeddings[a][i] @ embeddings[b][j]) for i, j in pairs), reverse=True)
        assert signals.similarities.keys() == expected.keys()
        for kind, values in expected.items():
            torch.testing.assert_close(
                signals.similarities[kind][index].sort(descending=True).values, torch.tensor(values), rtol=1e-4, atol=1e-5
            )


def test_a_frozen_tensor_has_no_gradient_to_look_at(seen):
    model, records, references, signals = seen
    next(model.parameters()).requires_grad_(False)
    fewer = signals_of(model, group_loss, iter([{name: view[0] for name, view in records.items()}]), references)
    assert fewer.gradients.shape[1] == signals.gradients.shape[1] - 1
