"""A model, records, views, a loss and an optimizer of the user's own make a run like any other."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dpfed
from dpfed.privacy.ledger import Ledger
from dpfed.progress import Progress
from tests.own_parts import SIDE, Pictures, augment, contrast, encoder, picture

STEPS = 6


def trainer(**changes) -> dpfed.Trainer:
    torch.manual_seed(changes.pop("weights", 0))
    parts = {
        "model": dpfed.SimCLR(encoder(), embedding=8, hidden=16),
        "records": dpfed.Records(Pictures(120), validation=Pictures(40, 500), workers=0),
        "views": dpfed.Views(augment()),
        "loss": contrast,
        "privacy": dpfed.Privacy(epsilon=8, batch=32, steps=STEPS, group_size=4, seed=5),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
        "schedule": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        "settings": {"training": {"checkpoint_every": 2}, "evaluation": {"tasks": ["knn"]}},
    }
    return dpfed.Trainer(**{**parts, **changes})


def weights(run) -> dict[str, torch.Tensor]:
    return run.encoder().model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


class Stop(dpfed.Callback):
    every = 1

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, step) -> None:
        if step.done == self.at:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trainer().fit(tmp_path_factory.mktemp("library") / "run")


@pytest.mark.long
def test_a_run_leaves_what_every_run_leaves(whole):
    for path in (whole.ledger, whole.card, whole.report, whole.results, whole.model / "model.safetensors"):
        assert Path(path).is_file()
    results = json.loads(whole.results.read_text())
    assert results["privacy"]["epsilon"] == pytest.approx(8, rel=1e-3)
    assert {figure["name"] for figure in results["evaluations"]} == {"knn3_accuracy", "knn200_accuracy"}
    assert Ledger.open(whole.ledger).charged == STEPS


@pytest.mark.long
def test_the_card_names_parts_of_the_users_own_and_what_is_assumed_of_them(whole):
    card = Path(whole.path / "privacy_card.md").read_text()
    for name in ("tests.own_parts:Pictures", "tests.own_parts:contrast", "torchvision.transforms.v2._container:Compose"):
        assert f"{name}" in card
    assert "It sees one group at a time" in card and "The transform was tried twice, in another order" in card


def test_the_same_line_finds_a_finished_run_with_its_weights(whole):
    again = trainer(weights=9).fit(whole.path)
    assert same(weights(again), weights(whole))


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 3, 5])
def test_the_same_line_resumes_bit_for_bit(whole, tmp_path, at):
    with pytest.raises(KeyboardInterrupt):
        trainer(callbacks=[Stop(at)]).fit(tmp_path / "run")
    assert same(weights(trainer(weights=3).fit(tmp_path / "run")), weights(whole))


@pytest.mark.long
def test_a_loop_of_ones_own_sees_paid_steps_and_gives_the_same_run(whole, tmp_path):
    seen = []
    with trainer().open(tmp_path / "run") as steps:
        for step in steps:
            assert Ledger.open(tmp_path / "run" / "ledger.jsonl").charged == step.done
            seen.append((step.done, step.epsilon))
            if step.done == 3:
                break
    with trainer(weights=3).open(tmp_path / "run") as steps:
        seen += [(step.done, step.epsilon) for step in steps]
    assert [done for done, _ in seen] == [1, 2, 3, 3, 4, 5, 6] and seen[-1][1] == pytest.approx(8, rel=1e-3)
    assert same(weights(trainer().fit(tmp_path / "run")), weights(whole))


@pytest.mark.long
def test_a_loop_may_step_the_optimizer_itself(tmp_path):
    plain = {"schedule": None}
    wanted = weights(trainer(**plain).fit(tmp_path / "fit"))
    plan = Ledger.open(tmp_path / "fit" / "ledger.jsonl").plan
    for stop in (2, None):  # the loop is left in the middle, and resumed
        mine = trainer(**plain, weights=0 if stop else 4)
        with mine.open(tmp_path / "manual", manual=True) as steps:
            for step in steps:
                gradient = torch.cat([parameter.grad.flatten() for parameter in mine.model.parameters()])
                assert 0.8 < gradient.std() * plan.divisor / plan.noise_std < 1.5  # it is noise, but for little
                steps.optimizer.step()
                steps.optimizer.zero_grad()
                if step.done == stop:
                    break
    assert same(weights(trainer(**plain).fit(tmp_path / "manual")), wanted)
    with pytest.raises(dpfed.UserError, match="applies no warm-up"), trainer().open(tmp_path / "other", manual=True):
        pass


def test_a_step_is_charged_before_the_loop_sees_it(tmp_path, monkeypatch):
    charge = Ledger.charge
    monkeypatch.setattr(Ledger, "charge", lambda *given: (time.sleep(0.3), charge(*given)))  # the disk is slow
    with trainer().open(tmp_path / "run") as steps:
        for step in steps:
            assert Ledger.open(tmp_path / "run" / "ledger.jsonl").charged == step.done
            if step.done == 2:
                break
        with pytest.raises(dpfed.UserError, match="run-twice"):
            next(iter(steps))


@pytest.mark.parametrize("given", [{"schedule": "cosine"}, {"warmup": 3}, {"ema": 0.5}])
def test_what_a_manual_loop_would_lose_is_refused(tmp_path, given):
    mine = trainer(optimizer={"name": "adam", **given}, schedule=None)
    with pytest.raises(dpfed.UserError, match="own-manual"), mine.open(tmp_path / "run", manual=True):
        pass


@pytest.mark.long
def test_no_figure_of_the_records_is_noted(tmp_path):
    """How many records are equal is a function of private records."""
    said: list[str] = []

    class Says(Progress):
        def note(self, text: str) -> None:
            said.append(text)

    pictures = [picture(n % 31) for n in range(68)]
    privacy = dpfed.Privacy(epsilon=8, batch=16, steps=2, group_size=4)
    trainer(records=dpfed.Records(pictures, workers=0), privacy=privacy, settings={}, schedule=None, progress=Says()).fit(
        tmp_path / "run"
    )
    assert said and not [text for text in said if "equal" in text or "contents" in text]


@pytest.mark.long
def test_processes_that_read_change_no_bit(whole, tmp_path):
    run = trainer(records=dpfed.Records(Pictures(120), validation=Pictures(40, 500), workers=2)).fit(tmp_path / "run")
    assert same(weights(run), weights(whole))


def test_the_encoder_gives_features_of_images_as_the_data_set_has_them(whole):
    trained_encoder = whole.encoder()
    features = trained_encoder.features([picture(1), picture(2)])
    assert features.shape == (2, 8) and torch.allclose(trained_encoder.features(picture(2)), features[1:], atol=1e-6)
    assert type(trained_encoder.module) is nn.Sequential and trained_encoder.embed_images(picture(2)).norm() == pytest.approx(1)


def test_other_parts_or_settings_are_another_run(whole):
    for changes, said in (
        ({"privacy": dpfed.Privacy(epsilon=4, batch=32, steps=STEPS, group_size=4, seed=5)}, "privacy.epsilon"),
        ({"loss": dpfed.losses.InfoNCE()}, "objective.name"),
        ({"model": encoder().append(nn.Linear(8, 4))}, None),
        ({"views": dpfed.Views(augment(), count=3)}, "views.count"),
    ):
        with pytest.raises(dpfed.UserError, match=said and f"holds a run with {said}"):
            trainer(**changes).fit(whole.path)


@pytest.mark.long
def test_the_command_line_says_that_a_script_began_the_run(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="stopped after step 3; running the same lines of Python again resumes"):
        trainer(callbacks=[Stop(3)]).fit(tmp_path / "run")
    with pytest.raises(dpfed.UserError, match="run the script that started this run again"):
        dpfed.resume(tmp_path / "run")
    with pytest.raises(dpfed.UserError, match="run the script that started this run again"):
        dpfed.load(whole.path)


class Words:
    """Tokens of words by their letters."""

    vocabulary = 40

    def __call__(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor([[min(39, len(word)) for word in (text.split() + [""] * 5)[:5]] for text in texts])


class Reads(nn.Module):
    """A text tower."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens).mean(1)


@pytest.mark.long
def test_two_towers_and_a_loss_of_both_sides(tmp_path):
    rows = [{"image": picture(n), "text": "a " + "word" * (n % 7 + 1)} for n in range(80)]

    def both(image, text):
        logits = image[:, 0] @ text[:, 0].T / 0.1
        return nn.functional.cross_entropy(logits, torch.arange(len(image)))

    run = trainer(
        model=dpfed.TwoTower(encoder(), Reads(), Words(), embedding=6),
        records=dpfed.Records(rows, caption="text", workers=0),
        loss=both,
        settings={},
        privacy=dpfed.Privacy(epsilon=8, batch=16, steps=2, group_size=4),
    ).fit(tmp_path / "run")
    assert run.encoder().embed_text(["a word"]).shape == (1, 6)


def test_defaults_are_enough(tmp_path):
    run = dpfed.Trainer(
        encoder(), [picture(n) for n in range(60)], privacy=dpfed.Privacy(epsilon=8, batch=16, steps=2, group_size=4), size=SIDE
    ).fit(tmp_path / "run")
    assert run.finished and run.encoder().features(picture(0)).shape == (1, 8)


@pytest.mark.long
@pytest.mark.parametrize("loss", [dpfed.losses.InfoNCE(0.5), dpfed.losses.SigLIP(), dpfed.losses.BarlowTwins()])
def test_our_losses_can_be_given_and_called(loss, tmp_path):
    assert loss(torch.randn(4, 2, 8)).dim() == 0
    privacy = dpfed.Privacy(epsilon=8, batch=16, steps=2, group_size=4)
    run = trainer(loss=loss, privacy=privacy, records=[picture(n) for n in range(60)], settings={}).fit(tmp_path / "run")
    assert run.config().objective.name == loss.name
