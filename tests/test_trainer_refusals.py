"""Parts that the promise cannot hold with, or that cannot train, are refused before anything is spent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import dpfed
from dpfed.config import OptimizerConfig
from tests.own_parts import Pictures, augment, contrast, encoder

PRIVACY = dpfed.Privacy(epsilon=8, batch=16, steps=4, group_size=4)
RECORDS = dpfed.Records(Pictures(60), workers=0)


def refused(tmp_path, said: str, **changes) -> None:
    parts = {"model": encoder(), "records": RECORDS, "views": dpfed.Views(augment()), "loss": contrast, "privacy": PRIVACY}
    with pytest.raises(dpfed.UserError, match=said):
        dpfed.Trainer(**{**parts, **changes}).fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Queue:
    """A loss with a queue of earlier embeddings."""

    def __init__(self) -> None:
        self.kept = torch.zeros(0)

    def __call__(self, z):
        extra = self.kept.mean() if len(self.kept) else 0.0
        self.kept = z.detach().flatten()
        return contrast(z) * (1 + extra)


class Learnt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, z):
        return contrast(z) * self.scale


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (Queue(), "loss-remembers"),
        (lambda z: contrast(z) + torch.rand(()), "loss-remembers"),
        (Learnt(), "has parameters of its own"),
        (lambda z: z.sum(dim=(1, 2)), r"gave a tensor \(4,\)"),
        (lambda z: 1.0, "gave float"),
        (lambda z: contrast(z) * torch.nan, "is nan on random embeddings"),
        (lambda z: contrast(z.detach()) + 0 * z.sum(), "has no gradient"),
        (lambda z: contrast(z.detach()), "has no gradient"),
        (lambda z, labels: contrast(z), "failed on embeddings"),
        (lambda z: 1 / 0, "ZeroDivisionError"),
        (3, "expected a function|got an? int"),
    ],
)
def test_a_loss_that_cannot_be_kept_private_or_learnt_from(tmp_path, loss, said):
    refused(tmp_path, said, loss=loss)


class Remembers(nn.Module):
    """Adds the mean of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = encoder(), None

    def forward(self, x):
        z = self.net(x)
        output = z if self.last is None else z + self.last
        self.last = z.detach().mean(0)
        return output


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = encoder()

    def forward(self, x):
        return self.net(x), None


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()), "with_group_norm"),
        (Remembers(), "model-"),
        (Pair(), "gave a tuple"),
        (nn.Conv2d(3, 8, 3), r"gave a tensor \(2, 8, .*expected features"),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten()), "the encoder Sequential failed on images"),
        (encoder().half(), "are float16|float16 and float32"),
        (encoder, "expected a torch.nn.Module as model, got a function"),
    ],
)
def test_a_model_that_mixes_or_does_not_fit(tmp_path, model, said):
    refused(tmp_path, said, model=model)


OTHER = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": lambda parameters: torch.optim.SGD(OTHER.parameters(), 0.1)}, "optimizer-other-parameters"),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters[:1], 0.1)}, "optimizer-other-parameters"),
        ({"optimizer": lambda parameters: torch.optim.LBFGS(parameters)}, "needs a closure"),
        ({"optimizer": lambda parameters: 3}, "expected a torch.optim.Optimizer"),
        ({"optimizer": torch.optim.SGD(OTHER.parameters(), 0.1)}, "expected a function that makes an optimizer"),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters, 1e30)}, "lower the learning rate"),
        ({"optimizer": {"name": "adamm"}}, "expected one of sgd, adam"),
        ({"schedule": lambda optimizer: None}, "needs an optimizer of your own"),
        (
            {"optimizer": lambda p: torch.optim.SGD(p, 0.1), "schedule": torch.optim.lr_scheduler.ReduceLROnPlateau},
            "step\\(\\) must take no metric",
        ),
        (
            {
                "optimizer": lambda p: torch.optim.SGD(p, 0.1),
                "schedule": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3),
            },
            "cannot go on for the run's 4 steps .*optimizer-schedule-short",
        ),
        ({"loss": dpfed.losses.InfoNCE}, "got the class InfoNCE: write InfoNCE()"),
        ({"model": dpfed.BYOL(encoder(), 8), "loss": None}, "own-byol-loss"),
        ({"model": dpfed.BYOL(encoder(), 8), "loss": dpfed.losses.VICReg()}, "own-byol-loss"),
        ({"callbacks": [dpfed.Callback]}, "callbacks= contains the class Callback: expected dpfed.Callback objects"),
        ({"records": ""}, "got the path ''"),
        ({"records": "photos"}, "got the path 'photos': give torchvision.datasets.ImageFolder"),
    ],
)
def test_an_optimizer_that_does_not_fit(tmp_path, changes, said):
    refused(tmp_path, said, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": 8}, "expected dpfed.Privacy"),
        ({"privacy": dpfed.Privacy(epsilon=8, batch=16, steps=4, group_size=1)}, "learns nothing from"),
        ({"privacy": dpfed.Privacy(epsilon=8, batch=600, steps=4)}, "batch"),
        ({"privacy": dpfed.Privacy(epsilon=8, batch=16, steps=4, unit="user")}, "names no units|name no units"),
        ({"privacy": dpfed.Privacy(batch=16, steps=4)}, "give exactly one of privacy.epsilon"),
        ({"privacy": dpfed.Privacy(epsilon=8, method="moments")}, "makes its own views"),
        ({"views": dpfed.Views(augment(), count=1)}, "views-few"),
        ({"settings": {"training": {"kept": 3}}}, "kept"),
        ({"settings": {"evaluation": {"split": "test"}}}, "test"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, changes, said):
    refused(tmp_path, said, **changes)


@pytest.mark.long
def test_a_model_that_was_trained_privately_is_not_trained_again(tmp_path):
    model = encoder()
    parts = {"records": RECORDS, "views": dpfed.Views(augment()), "loss": contrast, "privacy": PRIVACY}
    run = dpfed.Trainer(model, **parts).fit(tmp_path / "first")
    assert "starting weights: as 'Sequential' gives them" in (run.path / "privacy_card.md").read_text()
    for again in (model, dpfed.SimCLR(model)):
        with pytest.raises(dpfed.UserError, match="Make the model anew"):
            dpfed.Trainer(again, **parts).fit(tmp_path / "second")
    loaded = encoder()
    assert dpfed.Trainer(loaded, **parts).fit(tmp_path / "first").finished  # gets the weights of the finished run
    with pytest.raises(dpfed.UserError, match="own-trained"):
        dpfed.Trainer(loaded, **parts).fit(tmp_path / "third")
    assert dpfed.Trainer(model, **parts).fit(tmp_path / "first").finished


class WithUnused(nn.Module):
    """An encoder with a layer that its features do not depend on, as a classifier's last layer often is."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.head = encoder(), nn.Linear(3, 3)

    def forward(self, images):
        return self.used(images)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{"settings": {"bounding": {"engine": engine}}} for engine in ("auto", "loop", "layerwise")]
    + [{"privacy": dpfed.Privacy(epsilon=8, batch=16, steps=4, method="logit"), "loss": None}],
)
def test_a_layer_that_takes_no_part_is_refused_and_may_be_frozen(tmp_path, changes):
    model = WithUnused()
    refused(
        tmp_path,
        r"head.weight' and 1 more take no part in the loss.*requires_grad_\(False\).*run-unused",
        model=model,
        **changes,
    )
    model.head.requires_grad_(False)
    parts = {"records": RECORDS, "views": dpfed.Views(augment()), "loss": contrast, "privacy": PRIVACY}
    assert dpfed.Trainer(model, **{**parts, **changes}).fit(tmp_path / "run").finished


def test_adaptive_clipping_needs_its_statistics_and_takes_them(tmp_path):
    adaptive = dpfed.Privacy(epsilon=8, batch=32, steps=4, group_size=4, clipping="adaptive")
    refused(tmp_path, "diagnostics = 'private'", privacy=adaptive)
    settings = {"diagnostics": "private"}
    made = dpfed.Trainer(encoder(), RECORDS, privacy=adaptive, settings=settings)
    assert made.config.diagnostics == "private" and made.config.bounding.clipping == "adaptive"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {"privacy": {"epsilon": 30.0}}}, "which an argument of Trainer or Privacy gives"),
        ({"optimizer": {"name": "torch.optim:RAdam", "options": {"lr": 0.1}}}, "same meaning as optimizer.learning_rate"),
        ({"settings": {"privacy": 8}}, "own-setting-whole"),
        ({"settings": {"name": "mine"}}, "own-setting-whole"),
        ({"optimizer": OptimizerConfig(), "schedule": lambda optimizer: None}, "needs an optimizer of your own"),
        ({"size": 16}, "leave it out if you give views="),
        ({"size": 0, "views": None}, "data.size.*expected at least"),
        ({"callbacks": [print]}, "expected dpfed.Callback objects"),
        ({"callbacks": None}, "callbacks= contains None: expected dpfed.Callback objects"),
        ({"settings": [("privacy", {"epsilon": 8.0})]}, "expected a mapping of sections .*got a list of 1.*own-settings"),
        ({"privacy": replace(PRIVACY, options=[4])}, "bounding.options.*expected a section"),
        ({"views": dpfed.Views(lambda image: [augment()(image)] * 2, count=3)}, "gives 2 views at once"),
        ({"views": None, "records": [torch.zeros(5, 8, 8, dtype=torch.uint16)] * 40}, "images of 1 or 3 channels"),
        ({"model": encoder().to("meta")}, "on 'meta'"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path, changes, said):
    refused(tmp_path, said, **changes)


def test_the_advice_about_a_missing_split_suits_the_records(shapes, monkeypatch):
    given = {
        "views": dpfed.Views(augment()),
        "loss": contrast,
        "privacy": PRIVACY,
        "settings": {"evaluation": {"split": "test"}},
    }
    with pytest.raises(dpfed.UserError, match=r"Records\(test=.*own-split"):
        dpfed.Trainer(encoder(), RECORDS, **given)
    monkeypatch.setattr(dpfed.Records, "held_out", ())
    with pytest.raises(dpfed.UserError, match="a record store with test records.*own-split"):
        dpfed.Trainer(encoder(), dpfed.RecordStore.open(shapes.path), **given)


@pytest.mark.long
def test_other_records_are_not_resumed(tmp_path):
    class Stop(dpfed.Callback):
        every = 1

        def on_step(self, step):
            raise KeyboardInterrupt

    parts = {"views": dpfed.Views(augment()), "loss": contrast, "privacy": PRIVACY}
    with pytest.raises(KeyboardInterrupt):
        dpfed.Trainer(encoder(), RECORDS, callbacks=Stop(), **parts).fit(tmp_path / "run")
    for count, first, said in ((60, 7, "resume-other-records"), (50, 0, "own-other-records")):
        with pytest.raises(dpfed.UserError, match=said):
            dpfed.Trainer(encoder(), dpfed.Records(Pictures(count, first), workers=0), **parts).fit(tmp_path / "run")
    with dpfed.Trainer(encoder(), RECORDS, **parts).open(tmp_path / "run") as steps:
        assert [step.done for step in steps] == [2, 3, 4]
    with dpfed.Trainer(encoder(), RECORDS, **parts).open(tmp_path / "run") as steps:
        assert not list(steps)
