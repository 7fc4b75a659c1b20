"""What a reader of a card, of a traceback, or of a loop of one's own is told."""

from __future__ import annotations

import traceback
import warnings

import pytest
import torch

import dpfed
from dpfed.errors import Notice
from dpfed.protocol.identity import Identity
from tests.own_parts import Pictures, augment, encoder


def trainer(model=None, **privacy):
    promise = {"noise_multiplier": 1.0, "batch": 24, "steps": 3, "group_size": 6, "accountant": "rdp", **privacy}
    return dpfed.Trainer(
        model or dpfed.SimCLR(encoder(), 8, hidden=8),
        dpfed.Records(Pictures(60), workers=0),
        views=dpfed.Views(augment(), count=2),
        privacy=dpfed.Privacy(**promise),
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1),
        progress=False,
    )


@pytest.mark.long
def test_a_frozen_encoder_is_called_frozen_on_the_card(tmp_path):
    frozen = encoder()
    frozen.requires_grad_(False)
    run = trainer(dpfed.SimCLR(frozen, 8, hidden=8)).fit(tmp_path / "run")
    assert "(encoder frozen; head in full)" in run.card.read_text()
    half = encoder()
    half[0].requires_grad_(False)
    assert "(encoder in part; head in full)" in trainer(dpfed.SimCLR(half, 8, hidden=8)).fit(tmp_path / "half").card.read_text()


@pytest.mark.long
@pytest.mark.parametrize("steps_taken", [True, False])
def test_a_manual_loop_that_takes_no_step_is_told_once(tmp_path, steps_taken):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", Notice)
        with trainer().open(tmp_path / "run", manual=True) as steps:
            for _ in steps:
                if steps_taken:
                    steps.optimizer.step()
    said = [str(one.message) for one in told if "changed no parameter" in str(one.message)]
    assert len(said) == (0 if steps_taken else 1) and all("steps.optimizer.step()" in one for one in said)


@pytest.mark.long
def test_a_refusal_shows_the_users_line_and_no_way_through_dpfed(tmp_path, monkeypatch):
    def refused():
        with pytest.raises(dpfed.UserError) as raised:
            trainer(unit="user").fit(tmp_path / "run")
        return raised.value

    error = refused()
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.filename for frame in frames[:-1]] == [__file__] and frames[-1].filename.endswith("errors.py")
    assert "give Records(unit=...)" in str(error) and error._render_traceback_() == [f"UserError: {error}"]
    monkeypatch.setenv("DPFED_TRACEBACK", "1")
    assert len(traceback.extract_tb(refused().__traceback__)) > len(frames)


def test_a_key_never_replaces_another(tmp_path, monkeypatch):
    """Not even one that appears between a look and the writing."""
    path, first = tmp_path / "identity.key", Identity(b"1" * 32)
    first.save(path)
    monkeypatch.setattr("os.path.lexists", lambda path: False)
    with pytest.raises(FileExistsError):
        Identity.fresh().save(path)
    assert Identity.load(path).signing_key == first.signing_key and path.stat().st_mode & 0o777 == 0o600
