"""The library as docs/commands.md shows it: a plan, a store, a model of one's own, training, features."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import dpfed
from dpfed.data.options import ViewsConfig
from dpfed.data.views.images import ImageViews
from dpfed.data.views.record_views import RecordViews
from dpfed.features.training_views import TrainingViews
from dpfed.models.validation import validate
from dpfed.privacy.randomness import Randomness
from dpfed.training.learner import Learner
from dpfed.training.loop import train
from dpfed.training.transport import InProcess


class Mine(nn.Module):
    """A user's own model: one linear layer."""

    temperature = torch.tensor(0.2)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 8)

    def features(self, images):
        return self.layer(images.flatten(1))

    def forward(self, views):
        images = views["image"]
        return {"image": functional.normalize(self.features(images.flatten(0, 1)), dim=1).unflatten(0, images.shape[:2])}


@pytest.mark.long
def test_part_by_part_with_ones_own_model(shapes, tmp_path):
    store = dpfed.RecordStore.open(shapes.path)
    plan = dpfed.PrivacyPlan.calibrate(len(store.split("train")), 60, 5, epsilon=8, group_size=4, clip_norm=1.0)
    model = Mine()
    before = model.layer.weight.detach().clone()
    validate(model)
    learner = Learner(plan, model, store, TrainingViews(RecordViews(ImageViews(ViewsConfig()), size=16, count=2)))
    secret, ledger = Randomness.fresh(), learner.create_ledger(tmp_path / "ledger.jsonl")
    train(InProcess([learner.worker(secret.for_ranks())]), learner.coordinator(secret, ledger), range(plan.steps))
    assert ledger.epsilon <= 8 and ledger.charged == 5
    assert not torch.equal(before, model.layer.weight)


@pytest.mark.long
def test_the_whole_job_and_the_encoder_back(tiny_config, tmp_path):
    encoder = dpfed.load(dpfed.pretrain(tiny_config, tmp_path / "run").path)
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    assert encoder.features(images).shape[0] == 5
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    assert torch.allclose(encoder.features(pictures), encoder.features(images), atol=1e-5)
    deep = Image.fromarray((np.arange(16 * 16).reshape(16, 16) * 257).astype(np.uint16))  # 16 bits, as in X-rays
    shallow = Image.fromarray(np.arange(16 * 16).reshape(16, 16).astype(np.uint8))
    assert torch.equal(encoder.features([deep]), encoder.features([shallow]))


@pytest.mark.long
@pytest.mark.parametrize("public", [False, True])
def test_a_loaded_model_that_private_records_trained_is_not_trained_again(tiny, tmp_path, public):
    stores = {}
    for marked in (False, True):
        with dpfed.StoreWriter(tmp_path / f"store-{marked}", name="some", kind="image", size=16, public=marked) as writer:
            for number in range(100):
                noise = np.random.default_rng((number, marked)).integers(0, 256, (16, 16, 3), dtype=np.uint8)
                writer.add(dpfed.RecordInput(f"{number}", Image.fromarray(noise), split="train"))
        stores[marked] = dpfed.RecordStore.open(tmp_path / f"store-{marked}")
    tree = {**tiny, "data": {**tiny["data"], "path": str(stores[public].path)}, "model": {"kind": "image", "width": 8}}
    run = dpfed.pretrain(dpfed.parse_config(tree | {"evaluation": {"split": "none"}}), tmp_path / "run")
    for number, folder in enumerate((run.path, run.model)):
        for next_public, store in stores.items():  # a public run would lose what its model has seen
            privacy, again = dpfed.Privacy(epsilon=8, batch=16, steps=2), tmp_path / f"again-{number}-{next_public}"
            trainer = dpfed.Trainer(dpfed.load(folder).model, store, privacy=privacy, size=16)
            if public:
                assert trainer.fit(again).finished
            else:
                with pytest.raises(dpfed.UserError, match=f"comes from the run {folder}, .*own-trained"):
                    trainer.fit(again)
                assert not again.exists()


def test_starting_weights_are_not_named_for_a_model_that_is_given(tiny, tmp_path):
    start = tmp_path / "start.safetensors"
    save_file({"weight": torch.zeros(1)}, start)
    store, privacy = dpfed.RecordStore.open(tiny["data"]["path"]), dpfed.Privacy(epsilon=8, batch=16, steps=2)
    images = [store.images(np.array([row]), 16)[0] for row in range(40)]
    settings = {"model": {"start": str(start)}, "evaluation": {"split": "none"}}
    trainer = dpfed.Trainer(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), images, privacy=privacy,
        size=16, settings=settings)  # fmt: skip
    with pytest.raises(dpfed.UserError, match="load the weights into the model.*own-start"):
        trainer.fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_nothing_private_is_in_the_files_of_a_run(tiny, tmp_path):
    """A run's public files are the same for every content of the training records, up to the noisy path itself."""
    run = dpfed.pretrain(dpfed.parse_config(tiny), tmp_path / "run")
    allowed = {"step", "epsilon", "learning_rate", "noisy_gradient_norm", "evaluation"}
    for line in run.metrics.read_text().splitlines():
        assert set(json.loads(line)) <= allowed
    for line in run.ledger.read_text().splitlines()[1:]:
        assert set(json.loads(line)) in ({"step", "digest", "charged", "total", "chain"}, {"papers", "chain"})


@pytest.mark.long
def test_a_fixed_seed_voids_the_card(tiny, tmp_path):
    tiny["privacy"]["seed"] = 3
    run = dpfed.pretrain(dpfed.parse_config(tiny), tmp_path / "run")
    assert "no privacy guarantee holds" in run.card.read_text().splitlines()[0]
    assert json.loads(run.results.read_text())["privacy"]["guarantee"] is False
