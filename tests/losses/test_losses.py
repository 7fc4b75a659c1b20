"""Losses of one group: against their formulas written as loops, what must hold of all of them, and a run with each."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import dpfed
from dpfed.losses import DCL, BarlowTwins, InfoNCE, PairLoss, Prediction, PredictionHead, SigLIP, SupCon, VICReg
from tests.own_parts import Pictures, augment, encoder

LOSSES = [DCL(), DCL(0.7), VICReg(), VICReg(1, 2, 3), Prediction(), Prediction(centre=False)]
EMBEDDING = 6


def group(records: int = 5, views: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(records, views, EMBEDDING, dtype=torch.float64, generator=generator)


def dot(one, other) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def cosine(one, other) -> float:
    return dot(one, other) / math.sqrt(dot(one, one) * dot(other, other))


def dcl(views, temperature: float) -> float:
    records, total = len(views[0]), 0.0
    for mine in (0, 1):
        for i in range(records):
            negatives = [
                math.exp(cosine(views[mine][i], views[whose][j]) / temperature)
                for j in range(records)
                for whose in (0, 1)
                if j != i
            ]
            total += math.log(sum(negatives)) - cosine(views[mine][i], views[1 - mine][i]) / temperature
    return total / records


def vicreg(views, invariance: float, variance: float, covariance: float) -> float:
    records, dimensions = len(views[0]), len(views[0][0])
    pairs = [(a, b) for one, other in zip(*views, strict=True) for a, b in zip(one, other, strict=True)]
    total = invariance * sum((a - b) ** 2 for a, b in pairs) / len(pairs)
    for view in views:
        columns = list(zip(*view, strict=True))
        means = [sum(column) / records for column in columns]

        def covary(d, e, columns=columns, means=means):
            both = zip(columns[d], columns[e], strict=True)
            return sum((a - means[d]) * (b - means[e]) for a, b in both) / (records - 1)

        for d in range(dimensions):
            total += variance * max(0.0, 1 - math.sqrt(covary(d, d) + 1e-4)) / dimensions / 2
            total += covariance * sum(covary(d, e) ** 2 for e in range(dimensions) if e != d) / dimensions
    return total


def prediction(views, centre: bool) -> float:
    records, half = len(views[0]), len(views[0][0]) // 2
    if centre:
        means = [[sum(column) / records for column in zip(*view, strict=True)] for view in views]
        views = [
            [[a - m for a, m in zip(row, mean, strict=True)] for row in view] for view, mean in zip(views, means, strict=True)
        ]
    first, second = views
    both = [
        cosine(one[half:], other[:half]) + cosine(other[half:], one[:half]) for one, other in zip(first, second, strict=True)
    ]
    return -sum(both) / records / 2


@pytest.mark.parametrize(
    ("loss", "formula", "options"),
    [
        (DCL(), dcl, (0.1,)),
        (DCL(0.7), dcl, (0.7,)),
        (VICReg(), vicreg, (25, 25, 1)),
        (VICReg(1, 2, 3), vicreg, (1, 2, 3)),
        (Prediction(), prediction, (True,)),
        (Prediction(centre=False), prediction, (False,)),
    ],
    ids=["dcl", "dcl-warm", "vicreg", "vicreg-weights", "prediction", "prediction-uncentred"],
)
@pytest.mark.parametrize("records", [2, 3, 8])
def test_a_loss_is_its_formula_written_as_loops(loss, formula, options, records):
    z = 0.5 * group(records, seed=records)
    wanted = formula(z.transpose(0, 1).tolist(), *options)
    assert float(loss(z)) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_order_of_a_groups_records_plays_no_part(loss):
    z, order = group(7).requires_grad_(), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    torch.testing.assert_close(loss(z[order]), loss(z))
    (slope,) = torch.autograd.grad(loss(z), z)
    moved = z.detach()[order].requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(moved), moved)[0], slope[order])


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_remembers_no_other_group(loss):
    first = loss(group())
    loss(group(9, seed=1))
    assert torch.equal(loss(group()), first)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_slopes_are_those_of_differences(loss):
    z = group(4).requires_grad_()
    if isinstance(loss, Prediction):  # differences know no stopped gradient: projections are held
        half = EMBEDDING // 2
        held = z[..., :half].detach()
        assert torch.autograd.gradcheck(
            lambda part: loss(torch.cat([held, part], dim=2)), (z[..., half:].detach().requires_grad_(),)
        )
    else:
        assert torch.autograd.gradcheck(loss, (z,))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_of_more_views_it_is_the_mean_of_all_pairs(loss):
    z = group(5, views=3)
    pairs = [loss(z[:, list(pair)]) for pair in ((0, 1), (0, 2), (1, 2))]
    torch.testing.assert_close(loss(z), torch.stack(pairs).mean())
    torch.testing.assert_close(loss(z[:, :1], z[:, 1:]), torch.stack(pairs[:2]).mean())
    with pytest.raises(dpfed.UserError, match="loss-views"):
        loss(z[:, :1])


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("z", [group(1), torch.zeros(4, 2, EMBEDDING, dtype=torch.float64)], ids=["one record", "zeros"])
def test_values_and_slopes_are_finite(loss, z):
    z = z.clone().requires_grad_()
    value = loss(z)
    assert value.isfinite() and torch.autograd.grad(value, z)[0].isfinite().all()


def test_the_target_of_a_prediction_gets_no_gradient():
    z = group().requires_grad_()
    (slope,) = torch.autograd.grad(Prediction()(z), z)
    half = EMBEDDING // 2
    assert not slope[..., :half].any() and slope[..., half:].any()


def test_centred_predictions_do_not_reward_a_collapse():
    alike = torch.ones(6, 2, EMBEDDING, dtype=torch.float64)
    assert float(Prediction(centre=False)(alike)) == pytest.approx(-1)
    assert float(Prediction()(alike)) == pytest.approx(0)


@pytest.mark.parametrize(
    "make",
    [lambda: DCL(0), lambda: DCL(-1), lambda: DCL(math.nan), lambda: DCL(math.inf), lambda: VICReg(-1), lambda: VICReg(1, "2")],
)
def test_options_that_no_loss_can_have(make):
    with pytest.raises(dpfed.UserError, match="loss-option"):
        make()


def fitted(tmp_path, loss, model=None, **settings):
    torch.manual_seed(0)
    privacy = dpfed.Privacy(epsilon=8, batch=16, steps=3, group_size=4, seed=1)
    parts = {"privacy": privacy, "views": dpfed.Views(augment()), "records": dpfed.Records(Pictures(60), workers=0)}
    return dpfed.Trainer(model or dpfed.SimCLR(encoder(), 8, hidden=16), loss=loss, **parts).fit(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("loss", [DCL(0.2), VICReg()], ids=repr)
def test_a_run_with_a_loss(loss, tmp_path):
    run = fitted(tmp_path, loss)
    assert run.finished and run.config().objective.name == f"dpfed.losses:{type(loss).__name__}"
    assert f"dpfed.losses:{type(loss).__name__}" in run.card.read_text()
    assert run.encoder().model.unit_length == isinstance(loss, DCL)


@pytest.mark.long
def test_a_run_with_a_prediction(tmp_path):
    run = fitted(tmp_path, Prediction(), dpfed.SimCLR(encoder(), head=PredictionHead(8, 16)))
    assert run.finished
    with pytest.raises(dpfed.UserError, match="loss-prediction"):
        fitted(tmp_path / "odd", Prediction(), dpfed.SimCLR(encoder(), 9))


@pytest.mark.long
def test_another_temperature_is_another_run(tmp_path):
    run = fitted(tmp_path, DCL(0.2))
    assert fitted(tmp_path, DCL(0.2)).path == run.path
    with pytest.raises(dpfed.UserError, match="objective.options"):
        fitted(tmp_path, DCL(0.3))


class Lengths(PairLoss):
    """A user's own, which reads the length of embeddings."""

    def of(self, first, second):
        return (first - second).square().mean() + (1 - first.norm(dim=1)).square().mean()

    def prepare(self, model, group_size):
        model.unit_length = False


def test_a_users_loss_prepares_the_model(tmp_path):
    run = fitted(tmp_path, Lengths())
    assert run.config().objective.name == "python:Lengths" and not run.encoder().model.unit_length


@pytest.mark.long
def test_a_configuration_names_a_loss_that_reads_lengths(tiny, tmp_path):
    objective = {"name": "dpfed.losses:VICReg", "options": {"variance": 5.0}}
    privacy = {"epsilon": 8.0, "batch": 24, "steps": 2}
    tree = {**tiny, "objective": objective, "privacy": privacy, "evaluation": {"split": "none"}}
    run = dpfed.pretrain(dpfed.parse_config(tree), tmp_path / "run")
    assert run.finished


@pytest.mark.parametrize("loss", [*LOSSES, InfoNCE(), SigLIP(), BarlowTwins()], ids=repr)
@pytest.mark.parametrize(("z", "said"), [(group(5, views=1), "loss-views"), (group()[:, 0], "loss-dimensions")])
def test_embeddings_of_another_shape_are_refused(loss, z, said):
    with pytest.raises(dpfed.UserError, match=said):
        loss(z)


@pytest.mark.parametrize("label", [[0, 0, 1, 1, 2], torch.arange(4), torch.zeros(5, 1, 1)], ids=["a list", "4", "of a batch"])
def test_labels_of_another_shape_are_refused(label):
    with pytest.raises(dpfed.UserError, match="loss-labels-shape"):
        SupCon()(group(5), label=label)


def test_supervised_embeddings_of_another_shape_are_refused():
    with pytest.raises(dpfed.UserError, match="loss-dimensions"):
        SupCon()(group(5)[:, 0], label=torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize(
    ("made", "options"),
    [
        *((loss, {"temperature": value}) for loss in (InfoNCE, SigLIP, SupCon) for value in (0.0, -1, 1e-5, math.nan, "a")),
        (SigLIP, {"bias": 1e9}),
        (BarlowTwins, {"redundancy": -1}),
        (SupCon, {"label": 5}),
    ],
)
def test_an_option_that_a_configuration_refuses_is_refused_at_once(made, options):
    with pytest.raises(dpfed.UserError, match=rf"{made.__name__}, option {next(iter(options))}: .*loss-named-option"):
        made(**options)
