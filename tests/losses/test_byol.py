"""BYOL's target: an average of released weights alone, which no gradient reaches and which a resumed run finds again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dpfed
from dpfed.losses import Prediction, PredictionHead
from dpfed.models.parameters import TrainableVector
from dpfed.runs.build import build
from tests.own_parts import SIDE, Pictures, augment, encoder

DECAY = 0.7


def byol(decay=DECAY):
    torch.manual_seed(4)
    return dpfed.BYOL(encoder(), 6, hidden=8, decay=decay)


def moving(model):
    return nn.Sequential(model.encoder, model.head.project).state_dict()


def test_the_target_begins_as_the_encoder_and_is_no_parameter():
    model = byol()
    views = {"image": torch.randn(3, 2, 3, SIDE, SIDE)}
    embeddings = model(views)["image"]
    assert embeddings.shape == (3, 2, 12)
    projection, prediction = dpfed.SimCLR(model.encoder, head=model.head, normalize=False)(views)["image"].chunk(2, dim=2)
    torch.testing.assert_close(embeddings, torch.cat([projection, prediction], dim=2))
    plain = dpfed.SimCLR(encoder(), head=PredictionHead(6, 8))
    plain(views)
    assert TrainableVector(model).numel == sum(one.numel() for one in plain.parameters() if one.requires_grad)
    assert all(torch.equal(value, moving(model)[name]) for name, value in model.target.state_dict().items())
    Prediction()(embeddings).backward()
    assert all(not buffer.requires_grad for buffer in model.buffers())


@pytest.mark.parametrize("decay", [1.0, -0.1, "much", None])
def test_a_decay_that_cannot_be_is_refused(decay):
    with pytest.raises(dpfed.UserError, match="model-decay"):
        dpfed.BYOL(encoder(), decay=decay)


class Follows(dpfed.Callback):
    """Computes the target from the weights that are released, and nothing else."""

    every = 1

    def __init__(self, model, stop=None):
        self.model, self.stop, self.aim = model, stop, None

    def on_step(self, step):
        now = {name: value.clone() for name, value in moving(self.model).items()}
        if self.aim is not None:
            self.aim = {name: DECAY * self.aim[name] + (1 - DECAY) * value for name, value in now.items()}
        if step.done == self.stop:
            raise KeyboardInterrupt


def train(folder, callback=None, model=None):
    model = model or byol()
    trainer = dpfed.Trainer(
        model,
        dpfed.Records(Pictures(80), workers=0),
        views=dpfed.Views(augment(), count=2),
        loss=Prediction(),
        privacy=dpfed.Privacy(noise_multiplier=1.0, batch=24, steps=5, group_size=6, accountant="rdp", seed=1),
        optimizer={"name": "sgd", "learning_rate": 0.1},
        callbacks=[callback] if callback else [],
        settings={"training": {"checkpoint_every": 2}},
        progress=False,
    )
    trainer.fit(folder)
    return model.target.state_dict()


@pytest.mark.long
def test_the_target_follows_what_is_released_and_nothing_else(tmp_path):
    model = byol()
    model({"image": torch.zeros(2, 2, 3, SIDE, SIDE)})
    follows = Follows(model)
    follows.aim = {name: value.clone() for name, value in moving(model).items()}
    target = train(tmp_path / "run", follows, model)
    for name, value in target.items():
        torch.testing.assert_close(value, follows.aim[name])


@pytest.mark.long
def test_a_run_that_was_interrupted_finds_its_target_again(tmp_path):
    whole = train(tmp_path / "whole")
    model = byol()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Follows(model, stop=3), model)
    resumed = train(tmp_path / "run")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


@pytest.mark.long
def test_a_target_in_several_processes_is_refused(tmp_path):
    """Workers beside the first never move their target."""
    trainer = dpfed.Trainer(
        byol(),
        dpfed.Records(Pictures(80), workers=0),
        views=dpfed.Views(augment(), count=2),
        loss=Prediction(),
        privacy=dpfed.Privacy(epsilon=8, batch=24, steps=5, group_size=6),
    )
    with pytest.raises(dpfed.UserError, match="run-byol-processes"):
        build(trainer.config, given=trainer._own, world_size=2)
    assert build(trainer.config, given=trainer._own).learner.world_size == 1


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["pretrain", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_configuration_cannot_name_a_whole_model(tmp_path, launcher, dpfed):
    config = tmp_path / "mine.toml"
    config.write_text(CONFIG)
    several = ["--cluster", "ray", "--workers", "2"] if launcher == "ray" else []
    code, _, error = dpfed("pretrain", config, "--run", tmp_path / "run", *several)
    assert code == 2 and "returns a whole model, BYOL" in error and "model-whole" in error
    assert not (tmp_path / "run").exists()


CONFIG = """
[data]
source = "tests.own_parts:photos"
[model]
image = "tests.losses.test_byol:byol"
[objective]
name = "dpfed.losses:Prediction"
[privacy]
epsilon = 8.0
batch = 20
steps = 2
[bounding]
group_size = 4
[evaluation]
split = "none"
"""
