"""A run that is resumed, or found finished, notices another transform, loss, optimizer or schedule of the same name."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torchvision.transforms import v2

import dpfed
from dpfed.artifacts.directory import RunDirectory
from dpfed.building.own import OwnParts
from dpfed.runs.same_parts import in_words, refuse_other_parts, settings_of
from tests.own_parts import Pictures, Scaled, augment, contrast, encoder


class Stop(dpfed.Callback):
    every = 1

    def on_step(self, step):
        if step.done == 1:
            raise KeyboardInterrupt


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3)


def trainer(**more):
    given = {
        "views": dpfed.Views(v2.Compose([augment(), v2.Normalize([0.123456] * 3, [0.2] * 3)]), count=2),
        "loss": contrast,
        "optimizer": adamw,
        "schedule": lambda optimizer: CosineAnnealingLR(optimizer, 10),
    }
    privacy = dpfed.Privacy(noise_multiplier=1.0, batch=24, steps=2, group_size=6, accountant="rdp")
    records = dpfed.Records(Pictures(60), workers=0)
    model = dpfed.SimCLR(encoder(), 8, hidden=8)
    return dpfed.Trainer(model, records, privacy=privacy, progress=False, **{**given, **more})


def sharper(z):
    return contrast(3 * z) + z.square().mean()


OTHERS = {
    "the transform": {"views": dpfed.Views(augment(14), count=2)},
    "the loss": {"loss": sharper},
    "the optimizer": {"optimizer": lambda parameters: torch.optim.AdamW(parameters, 1e-2)},
    "the schedule": {"schedule": lambda optimizer: CosineAnnealingLR(optimizer, 99)},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run that was interrupted, and one that is finished."""
    open_run, done = tmp_path_factory.mktemp("runs") / "open", tmp_path_factory.mktemp("runs") / "done"
    with pytest.raises(KeyboardInterrupt):
        trainer(callbacks=[Stop()]).fit(open_run)
    trainer().fit(done)
    return open_run, done


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("which", [0, 1], ids=["interrupted", "finished"])
def test_another_part_of_the_same_name_is_refused(folders, name, which):
    sharper.__qualname__ = contrast.__qualname__  # the configuration has names alone
    with pytest.raises(dpfed.UserError, match=rf"other settings of {name}.*resume-other-part|resume-config-changed"):
        trainer(**OTHERS[name]).fit(folders[which])


def test_a_run_keeps_no_setting_that_may_be_private(folders):
    """The mean of `Normalize` may have been taken of the records."""
    for folder in folders:
        assert {"the transform", "the optimizer"} <= RunDirectory.open(folder).provenance["settings"].keys()
        for path in folder.rglob("*"):
            assert path.is_dir() or b"0.123456" not in path.read_bytes(), path


def test_a_run_of_an_older_dpfed_kept_the_settings():
    parts = OwnParts(loss=contrast)
    refuse_other_parts({"the loss": in_words(contrast)}, settings_of(parts), "runs/a")
    with pytest.raises(dpfed.UserError, match="resume-other-part"):
        refuse_other_parts({"the loss": in_words(sharper)}, settings_of(parts), "runs/a")


def test_the_same_parts_made_anew_resume(folders):
    assert trainer().fit(folders[0]).finished and trainer().fit(folders[1]).finished


def test_what_says_nothing_is_not_compared():
    assert in_words(Scaled(0.3)) is None and in_words(object()) is None
    assert in_words(contrast) == in_words(contrast) != in_words(sharper)
    assert in_words(StepLR) is None
