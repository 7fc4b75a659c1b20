"""Centres belong to training with public contrast alone: at zero they change nothing, and what is published has none."""

import pytest
import torch
from safetensors.torch import load_file

import dpfed
from dpfed.config import parse_config
from dpfed.models.contract import embeddings_of
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain

RANDOMNESS = Randomness.from_seed(5)
CLIP = {"kind": "open_clip", "architecture": "towers/small.json"}


def parts_of(tree, **public):
    tree["public"] = {**tree["public"], **public}
    return build(parse_config(tree), RANDOMNESS)


def test_only_public_contrast_has_centres(tiny, tiny_public):
    assert not hasattr(build(parse_config(tiny), RANDOMNESS).model, "centres")
    assert not hasattr(parts_of(tiny_public, centring=0.0).model, "centres")
    model = parts_of(tiny_public, centring=0.2).model
    assert not model.centres.table.weight.any() and model.centres.table.weight.shape == (1, 4 * 16)


@pytest.mark.long
@pytest.mark.parametrize("model", ["own", "open_clip"])
def test_centres_draw_nothing_and_change_no_other_weight(tiny_public, model):
    if model == "open_clip":
        pytest.importorskip("open_clip")
        tiny_public["model"], tiny_public["data"]["size"] = CLIP, 32
    with_them, without = (parts_of(tiny_public, centring=centring).model for centring in (0.2, 0.0))
    rest = {name: value for name, value in with_them.state_dict().items() if not name.startswith("centres.")}
    assert rest.keys() == without.state_dict().keys()
    assert all(torch.equal(value, without.state_dict()[name]) for name, value in rest.items())


def test_the_first_sum_pulls_the_centres_to_the_embeddings(tiny_public):
    tiny_public["bounding"]["clip_norm"] = 1e3  # no clipping: the sum is that of the gradients
    parts = parts_of(tiny_public, centring=0.3)
    total = parts.learner.worker(RANDOMNESS).bounded_sum(0).numbers().float()
    named = [(name, parameter) for name, parameter in parts.model.named_parameters() if parameter.requires_grad]
    assert [name for name, _ in named][-1] == "centres.table.weight"
    pull = -total[-4 * 16 :].view(2, 2, 16) / 0.3
    indices, (image, text) = parts.learner.worker(RANDOMNESS).draw(0).indices, (0, 1)
    views = parts.views.maker(parts.store)(indices, RANDOMNESS, 0, torch.device("cpu"))
    with torch.no_grad():
        z = embeddings_of(parts.model.train(), views)
    for modality, name in ((image, "image"), (text, "text")):
        assert torch.allclose(pull[0, modality], z[name].mean(dim=1).sum(dim=0), atol=1e-3 * len(indices))
    assert pull[1].norm(dim=1).min() > 0.1 * len(indices)  # the public ones follow theirs


@pytest.mark.long
def test_a_run_trains_centres_and_publishes_none(tiny_public, tmp_path):
    tiny_public["privacy"] = {"noise_multiplier": 0.5, "accountant": "rdp", "batch": 40, "steps": 6}
    run = pretrain(parse_config(tiny_public), tmp_path / "run")
    kept = load_file(sorted(run.checkpoints.glob("*.safetensors"))[-1])
    centres = [value for name, value in kept.items() if "centres" in name and value.numel() == 4 * 16]
    assert centres and centres[0].abs().max() > 1e-3
    assert not any("centres" in name for name in load_file(run.model / "model.safetensors"))
    encoder = dpfed.load(run.path)
    assert encoder.features(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape[0] == 2
    assert not hasattr(encoder.model, "centres") if hasattr(encoder, "model") else True
