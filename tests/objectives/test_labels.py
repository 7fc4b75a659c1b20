"""Losses that read labels: SupCon against its formula, and what no label of a record may change for others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import dpfed
from dpfed.bounding.clipping import Clip
from dpfed.bounding.engines import GroupBatch
from dpfed.bounding.engines.engine import LossOfViews
from dpfed.bounding.engines.layerwise import LayerwiseEngine
from dpfed.bounding.engines.loop import LoopEngine
from dpfed.config import ObjectiveConfig, parse_config
from dpfed.losses import SupCon
from dpfed.objectives.classes import LABEL, first_of_class
from dpfed.objectives.own import OwnLoss
from dpfed.runs.labels import label_of
from tests.own_parts import SIDE, Pictures, augment, encoder, picture


def supcon(views, classes, temperature):
    """Equation 2 of the paper, as loops; the mean over records of the mean over views."""
    rows = [
        (torch.nn.functional.normalize(z, dim=0), label) for record, label in zip(views, classes, strict=True) for z in record
    ]
    total = 0.0
    for i, (anchor, label) in enumerate(rows):
        others = [(z, other) for j, (z, other) in enumerate(rows) if j != i]
        denominator = math.log(sum(math.exp(float(anchor @ z) / temperature) for z, _ in others))
        positives = [float(anchor @ z) / temperature - denominator for z, other in others if other == label]
        total -= sum(positives) / len(positives)
    return total / len(rows)


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("classes", [[0, 0, 1, 1, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]], ids=["some", "none", "all"])
def test_supcon_is_its_formula_written_as_loops(views, classes):
    z = torch.randn(5, views, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(views))
    loss = SupCon(temperature=0.3)(z, label=torch.tensor(classes))
    assert float(loss) == pytest.approx(supcon(z, classes, 0.3), rel=1e-6)


def test_records_without_a_class_share_none():
    z = torch.randn(5, 2, 6, generator=torch.Generator().manual_seed(0))
    assert SupCon()(z, label=torch.tensor([0, -1, 0, -1, -1])) == SupCon()(z, label=torch.tensor([0, 1, 0, 2, 3]))


@pytest.mark.parametrize("views", [1, 2])
def test_supcon_of_a_single_record_is_0(views):
    assert SupCon()(torch.randn(1, views, 4), label=torch.zeros(1, dtype=torch.long)) == 0


def test_a_loss_sees_who_shares_a_class_and_no_number():
    present = torch.tensor([True] * 5 + [False])
    for numbers in ([3, 9, 3, -1, 9, 3], [0, 1, 0, -1, 1, 0], [7, 2, 7, -1, 2, 7]):
        label = torch.tensor(numbers)[:, None, None]
        assert first_of_class(label, present).tolist() == [0, 1, 0, 3, 1, 5]  # the last is padding: no 0 of a class
    assert first_of_class(torch.full((3, 1, 1), -1), torch.ones(3, dtype=torch.bool)).tolist() == [0, 1, 2]


def model(seed=0):
    torch.manual_seed(seed)
    network = dpfed.SimCLR(encoder(), 6, hidden=8, temperature=0.2)
    network({"image": torch.zeros(2, 2, 3, SIDE, SIDE)})
    return network


def batch(labels, sizes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(sum(sizes), 2, 3, SIDE, SIDE, generator=generator)
    offsets = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    return GroupBatch({"image": image, LABEL: torch.tensor(labels)[:, None, None]}, offsets)


def mean_by_class(z, label):
    """A loss of one's own that would read numbers if it got some."""
    return ((z[:, 0] * z[:, 1]).sum(1) * (1.0 + label)).mean()


LOSSES = {
    "supcon": lambda: ObjectiveConfig(name="supcon").group_loss(),
    "own": lambda: OwnLoss(SupCon(temperature=0.2)),
    "numbers": lambda: OwnLoss(mean_by_class),
}


def clipped(engine, loss, given, steps=2.0**24):
    """The exact sum in steps of a grid: each group's part is at most so many steps long."""
    made = engine(model(), loss=LOSSES[loss]())
    total = made.zeros().long()
    made.add_clipped(given, Clip(steps, steps), total)
    return total


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
def test_the_engines_agree(loss):
    given = batch([0, 1, 0, 2, 2, 2, 1, -1, 0, 0, 1], [4, 3, 4])
    one, other = (clipped(engine, loss, given).double() for engine in (LoopEngine, LayerwiseEngine))
    assert (one - other).norm() <= 1e-4 * one.norm()
    others = batch([0, 0, 1, 2, 2, 1, 1, -1, 0, 1, 1], [4, 3, 4])
    assert (one - clipped(LoopEngine, loss, others)).norm() > 1e-2 * one.norm()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("engine", [LoopEngine, LayerwiseEngine])
def test_a_records_label_moves_its_own_group_by_no_more_than_2c(engine, loss):
    """Without the only record of class 0, all classes get other numbers; the other groups add the same bits."""
    whole = batch([1, 2, 0, 2, 1, 3, 3, 1, 2, 3], [3, 4, 3])
    rest = [row for row in range(10) if row != 2]
    views = {name: view[rest] for name, view in whole.views.items()}
    views[LABEL] = views[LABEL] - 1  # as a data set without that record would number them
    without, radius = GroupBatch(views, [0, 2, 6, 9]), 2.0**24
    moved = clipped(engine, loss, whole) - clipped(engine, loss, without)
    assert torch.equal(moved, clipped(engine, loss, whole.first(1)) - clipped(engine, loss, without.first(1)))
    assert 0 < float(moved.double().norm()) <= 2 * radius


def labelled(numbers, classes):
    return [{"image": picture(number), "label": name} for number, name in zip(numbers, classes, strict=True)]


def read(data, reads_labels=True, **more):
    records = dpfed.Records(data, workers=0, **more)
    records.reads_labels = reads_labels
    return records


def test_a_label_that_a_loss_reads_is_a_part_of_a_records_key():
    """Of two equal images with two labels, each keeps its key without the other; classes count by name, and by no number."""
    both = read(labelled([1, 1, 2], ["cat", "dog", "dog"]), label="label")
    for missing in range(3):
        kept = [row for row in range(3) if row != missing]
        rows = [both.source[row] for row in kept]
        assert read(rows, label="label").keys.tolist() == both.keys[kept].tolist()

    class Folders(Pictures):
        classes = ("ape", "bee")

    class Fewer(Pictures):
        classes = ("bee",)

        def __getitem__(self, place):
            return super().__getitem__(place)[0], 0

    assert read(Fewer(1, first=1)).keys[0] == read(Folders(4)).keys[1]


def test_a_label_that_no_loss_reads_is_no_part_of_a_key():
    """Its number may depend on other records."""
    one, other = (
        read(labelled([1, 2], names), reads_labels=False, label="label") for names in (["cat", "dog"], ["ape", "ape"])
    )
    assert one.keys.tolist() == other.keys.tolist() and one.contents == other.contents
    one.reads_labels = other.reads_labels = True
    assert not set(one.keys.tolist()) & set(other.keys.tolist()) and one.contents != other.contents


def train(tmp_path, **more):
    torch.manual_seed(0)
    settings = {"privacy": dpfed.Privacy(noise_multiplier=1.0, batch=24, steps=2, group_size=6, accountant="rdp", seed=1)}
    trainer = dpfed.Trainer(
        dpfed.SimCLR(encoder(), 8, hidden=8),
        dpfed.Records(Pictures(80), workers=0, name="pictures") if "records" not in more else more.pop("records"),
        views=dpfed.Views(augment(), count=2),
        progress=False,
        **{**settings, **more},
    )
    return trainer.fit(tmp_path / "run")


@pytest.mark.long
def test_supcon_trains_and_the_card_says_that_classes_count(tmp_path):
    records = dpfed.Records(Pictures(80), workers=0, name="pictures")
    run = train(tmp_path, loss=SupCon(temperature=0.2), records=records)
    assert records.reads_labels
    assert run.config().objective.name == "supcon"
    assert "an image with its class, which the loss reads under the same noise" in run.card.read_text()


def test_a_loss_of_ones_own_reads_labels(tmp_path):
    seen = []

    def loss(z, label):
        seen.append(label)
        return SupCon(temperature=0.2)(z, label=label)

    train(tmp_path, loss=loss)
    assert any(len(set(one.tolist())) < len(one) for one in seen)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"records": dpfed.Records([picture(n) for n in range(40)], workers=0)}, "loss-labels-none"),
        (
            {"records": dpfed.Records([(picture(n), n % 2, n % 3) for n in range(40)], label={"a": 1, "b": 2}, workers=0)},
            "does not say which label it reads, and .* has the labels a, b: set .*loss-labels-which",
        ),
        ({"loss": SupCon(label="species")}, "reads the label 'species', and .* has the labels .*loss-labels-which"),
        ({"privacy": dpfed.Privacy(noise_multiplier=1.0, batch=24, steps=2, method="batch")}, "loss-labels-method"),
    ],
    ids=["none", "several", "another", "method"],
)
def test_labels_that_cannot_be_read_are_refused(tmp_path, more, code):
    with pytest.raises(dpfed.UserError, match=code):
        train(tmp_path, **{"loss": SupCon(), **more})
    assert not (tmp_path / "run").exists()


def test_supcon_compares_no_text(tiny_config):
    config = tiny_config.model_copy(update={"objective": ObjectiveConfig(name="supcon")})
    with pytest.raises(dpfed.UserError, match="loss-labels-text"):
        label_of(config, config.objective.group_loss(), dpfed.Records(Pictures(10), workers=0))


@pytest.mark.long
def test_a_configuration_names_supcon(tmp_path):
    named = {
        "data": {"source": "tests.own_parts:photos"},
        "model": {"image": "tests.own_parts:small", "embedding": 8, "head_hidden": 8},
        "views": {"transform": "tests.own_parts:augment", "options": {"size": 12}},
        "objective": {"name": "supcon", "temperature": 0.2, "label": "label"},
        "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 24, "steps": 2},
        "bounding": {"group_size": 4},
        "evaluation": {"split": "none"},
    }
    assert dpfed.pretrain(parse_config(named), tmp_path / "run").finished


def test_the_model_does_not_see_the_class():
    class Nosy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        temperature = torch.tensor(0.2)

        def forward(self, views):
            assert set(views) == {"image"}
            return self.inner(views)

    given = batch([0, 1, 0], [3])
    loss = LossOfViews(Nosy(), "fp32", LOSSES["supcon"]())(given.views, torch.ones(3, dtype=torch.bool))
    assert loss.isfinite()
