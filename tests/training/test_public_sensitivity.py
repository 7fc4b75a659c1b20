"""The bound of public contrast, on neighbours, with steep gradients: C, and every way to lose it on purpose."""

import numpy as np
import pytest
import torch

from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.public_records import PublicNegatives
from dpfed.data.sampling import StepDraw
from dpfed.data.store.record import record_key
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.randomness import Randomness
from dpfed.runs.build import build
from dpfed.training import worker as worker_room
from dpfed.training.worker import Worker
from tests.bounding.methods.test_public import added
from tests.training.records_of_worker import keep_only

RANDOMNESS = Randomness.from_seed(5)


class Adversary(torch.nn.Module):
    """Steep gradients, whose direction is a function of all pictures of the group: any other member turns them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, views):
        images = views["image"]
        angle = 10 * images.double().sum(dim=(1, 2, 3, 4)).sum().float()
        here = torch.arange(len(images)) % 2 == 0
        first = torch.where(here[:, None], torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        steep = 1e4 * (angle.cos() * self.weight[0] + angle.sin() * self.weight[1])
        return {"image": torch.stack([first, first + steep * first], 1), "text": torch.stack([first + steep * first], 1)}


@pytest.fixture
def parts(tiny_public):
    tiny_public["views"] = {}
    return build(parse_config(tiny_public), RANDOMNESS).with_learner(model=Adversary())


def draw_of(parts) -> StepDraw:
    indices, keys = parts.store.split("train"), parts.store.keys
    return worker_room.draw_step(parts.plan, RANDOMNESS, 0, indices, keys[indices], parts.plan.groups)


def sum_of(parts, kept) -> torch.Tensor:
    one = parts.learner.worker(RANDOMNESS)
    keep_only(one, kept, parts.store.keys)
    return one.bounded_sum(0).numbers()


def moved(parts, count: int = 8) -> list[float]:
    """How far each of some drawn records moves the sum."""
    indices, drawn = parts.store.split("train"), draw_of(parts).indices
    whole = sum_of(parts, indices)
    return [(whole - sum_of(parts, indices[indices != gone])).norm().item() for gone in drawn[:count]]


@pytest.mark.long
@pytest.mark.parametrize("microbatch", [1, 32, 4096])
def test_every_adversarial_record_reaches_c_and_no_more(parts, microbatch):
    distances = moved(parts.with_learner(microbatch=microbatch))
    assert parts.plan.sensitivity == parts.plan.bounding.clip_norm
    assert max(distances) <= parts.plan.sensitivity
    assert min(distances) == pytest.approx(parts.plan.bounding.clip_norm, rel=1e-3)  # so noise for less than C is too little


@pytest.mark.long
@pytest.mark.parametrize("engine", ["loop", "layerwise"])
def test_random_records_move_an_ordinary_models_sum_by_c_at_most(tiny_public, engine):
    tiny_public["bounding"] |= {"engine": engine, "clip_norm": 0.01}
    parts = build(parse_config(tiny_public), RANDOMNESS)
    distances = moved(parts, 4)
    assert 0 < min(distances) and max(distances) <= parts.plan.sensitivity


class Seen:
    """An engine that keeps the groups that it is given."""

    name = "seen"
    adds_whole_parts = True

    def __init__(self) -> None:
        self.groups: list[dict[str, torch.Tensor]] = []
        self.together: list[int] = []

    def zeros(self):
        return torch.zeros(1, dtype=torch.float64)

    def add_clipped(self, batch, clip_norm, into):
        self.groups += batch.groups()
        self.together.append(len(batch.views["image"]))
        return torch.zeros(0)


@pytest.mark.parametrize("microbatch", [3, 32, 4096])
def test_a_group_is_its_record_and_its_keys_public_ones(tiny_public, tmp_path, microbatch):
    """Made one by one: neither the other groups nor the microbatches have a part in it, and held-out records none at all."""
    write_shapes(tmp_path / "public", train=20, validation=10, test=10, seed=9)
    tiny_public["bounding"]["microbatch"] = microbatch
    tiny_public["public"] = {"path": str(tmp_path / "public")}
    parts, step, cpu = build(parse_config(tiny_public), RANDOMNESS), 3, torch.device("cpu")
    seen = Seen()
    one = parts.learner.worker(RANDOMNESS)
    one.engine = seen
    one.bounded_sum(step)
    indices, keys = parts.store.split("train"), parts.store.keys
    draw = worker_room.draw_step(parts.plan, RANDOMNESS, step, indices, keys[indices], parts.plan.groups)
    own_views = parts.views.maker(parts.store)
    public_views = parts.views.maker(parts.learner.public)
    public_negatives, apart = (
        PublicNegatives(public_views, parts.learner.public.split("train"), 3),
        Randomness(RANDOMNESS.key("public")),
    )
    assert len(seen.groups) == len(draw) > 20
    for group, views in enumerate(seen.groups):
        private = own_views(draw.members(group), RANDOMNESS, step, cpu)
        public = public_views(public_negatives.of(keys[draw.members(group)], RANDOMNESS, step)[0], apart, step, cpu)
        assert all(torch.equal(views[name], torch.cat([private[name], public[name]])) for name in ("image", "text"))
    assert max(seen.together) <= max(microbatch, 4)  # public records take memory, too


@pytest.mark.long
def test_a_workers_sum_is_that_of_its_records_own_terms(tiny_public):
    """As autograd has it: what the public records say of each other is in no gradient, and takes no part of the clip norm."""
    tiny_public["bounding"]["clip_norm"] = 0.5
    tiny_public["public"] |= {"centring": 0.0}  # `tests/bounding/methods/test_public.py` has centres
    parts, seen, expected = build(parse_config(tiny_public), RANDOMNESS), Seen(), 0
    one = parts.learner.worker(RANDOMNESS)
    one.engine = seen
    one.bounded_sum(0)
    trained = TrainableVector(parts.model).parameters
    for views in seen.groups:
        loss = added("infonce", parts.model(views), 1, parts.model.temperature, None)
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained)]).double()
        expected = expected + gradient * min(1.0, 0.5 / gradient.norm().item())
    summed = parts.learner.worker(RANDOMNESS).bounded_sum(0).numbers()
    assert (summed - expected).norm() <= 1e-3 * expected.norm()  # the clip norm leaves room for rounding


def test_a_record_that_was_not_drawn_changes_nothing(parts):
    indices, drawn = parts.store.split("train"), set(draw_of(parts).indices)
    idle = next(index for index in indices if index not in drawn)
    assert torch.equal(sum_of(parts, indices), sum_of(parts, indices[indices != idle]))


def test_an_empty_step_gives_zeros(parts):
    one = parts.learner.worker(RANDOMNESS)
    keep_only(one, np.zeros(0, int), parts.store.keys)
    result = one.bounded_sum(0)
    assert not result.values.any() and result.groups == parts.plan.sampling.batch


@pytest.mark.long
def test_companions_that_depend_on_other_records_break_the_bound(parts, monkeypatch):
    """The mechanism broken on purpose: a group's companions are drawn by its place in the batch."""
    by_key = PublicNegatives.of
    places = lambda self, keys, *rest: by_key(self, np.arange(len(keys), dtype=np.uint64), *rest)  # noqa: E731
    monkeypatch.setattr(PublicNegatives, "of", places)
    assert max(moved(parts.with_learner(microbatch=4096))) > parts.plan.sensitivity * 1.02


@pytest.mark.long
def test_two_private_records_in_a_group_break_the_bound(parts, monkeypatch):
    """The mechanism broken on purpose: records meet in groups, as in group clipping."""
    honest = worker_room.draw_step

    def in_twos(*arguments):
        draw = honest(*arguments)
        twos = np.argsort(draw.keys % np.uint64(20), kind="stable")  # a function of each record's own key
        offsets = np.flatnonzero(np.diff((draw.keys % np.uint64(20))[twos], prepend=np.uint64(21)))
        return StepDraw(draw.indices[twos], np.append(offsets, len(twos)), draw.keys[twos][offsets])

    monkeypatch.setattr(worker_room, "draw_step", in_twos)
    assert max(moved(parts, 30)) > parts.plan.sensitivity * 1.02


def test_a_divisor_that_counts_what_was_drawn_breaks_the_bound(parts):
    """What is released is the sum over B. Over the number of groups instead, one record moves every other one's part."""
    indices, drawn = parts.store.split("train"), draw_of(parts).indices
    assert (
        parts.plan.divisor == parts.plan.sampling.batch == parts.learner.worker(RANDOMNESS).bounded_sum(0).groups != len(drawn)
    )

    class Turned(Adversary):
        def forward(self, views):
            images = views["image"]
            self.weight.data.zero_()
            turned = -1.0 if torch.isclose(images[0].sum(), self.mark, atol=1e-4) else 1.0
            here = torch.arange(len(images)) % 2 == 0
            first = torch.where(here[:, None], torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
            steep = first + 1e4 * turned * self.weight[0] * first
            return {"image": torch.stack([first, steep], 1), "text": torch.stack([steep], 1)}

    model = Turned()
    model.mark = parts.views.images.plain(parts.views.read(parts.store, drawn[:1])).sum()
    hostile, batch = parts.with_learner(model=model), parts.plan.sampling.batch
    whole, without = sum_of(hostile, indices), sum_of(hostile, indices[indices != drawn[0]])
    bound = parts.plan.sensitivity / parts.plan.divisor
    assert (whole / batch - without / batch).norm() <= bound * (1 + 1e-6)
    assert (whole / len(drawn) - without / (len(drawn) - 1)).norm() * len(drawn) / batch > bound * 1.02


@pytest.mark.long
def test_workers_together_have_one_owners_sum(parts):
    """A record's group is a function of the record, so it does not matter who holds it."""
    for world_size in (2, 3):
        total = sum(
            parts.with_learner(rank=k, world_size=world_size).learner.worker(RANDOMNESS).bounded_sum(0).numbers()
            for k in range(world_size)
        )
        assert torch.equal(total, sum_of(parts, parts.store.split("train")))


def unit_sums(parts, per_unit: int):
    """How far one unit of five records moves the sum."""
    indices = parts.store.split("train")
    units = np.array([record_key(f"person {row % 120}") for row in range(len(parts.store))], np.uint64)
    plan = parts.plan.replace(records=120, batch=40, unit="user", per_unit=per_unit)
    draw = worker_room.draw_step(plan, RANDOMNESS, 0, indices, parts.store.keys[indices], plan.groups, units[indices])
    template, results = parts.learner.worker(RANDOMNESS), []
    for kept in (indices, indices[~(units == draw.keys[3])[indices]]):
        one = Worker(
            plan=plan,
            model=parts.model,
            engine=template.engine,
            views=template.views,
            indices=kept,
            keys=parts.store.keys[kept],
            randomness=RANDOMNESS,
            microbatch=64,
            units=units[kept],
            public_negatives=template._public_negatives,
        )
        results.append(one.bounded_sum(0).numbers())
    return (results[0] - results[1]).norm().item(), plan


@pytest.mark.parametrize("per_unit", [1, 3, 5])
def test_an_adversarial_unit_of_many_reaches_c_and_no_more(parts, per_unit):
    distance, plan = unit_sums(parts, per_unit)
    assert distance <= plan.sensitivity and distance == pytest.approx(plan.bounding.clip_norm, rel=1e-3)


@pytest.mark.long
def test_a_group_for_every_record_of_a_unit_breaks_the_bound(parts, monkeypatch):
    """The mechanism broken on purpose: a drawn unit's records make a group each."""
    honest = Worker.draw

    def singles(self, step):
        draw = honest(self, step)
        return StepDraw(draw.indices, np.arange(len(draw.indices) + 1), np.repeat(draw.keys, np.diff(draw.offsets)))

    monkeypatch.setattr(Worker, "draw", singles)
    distance, plan = unit_sums(parts, 5)
    assert distance > plan.sensitivity * 1.02


def test_a_worker_has_companions_exactly_where_the_plan_says_so(parts, tiny):
    one = parts.learner.worker(RANDOMNESS)
    rest = dict(engine=one.engine, views=one.views, indices=np.arange(2), keys=one._keys[:2], microbatch=8)
    with pytest.raises(ValueError, match="public records"):
        Worker(parts.plan, parts.model, randomness=RANDOMNESS, **rest)
    group = build(parse_config(tiny), RANDOMNESS).plan
    with pytest.raises(ValueError, match="public records"):
        Worker(group, parts.model, randomness=RANDOMNESS, public_negatives=one._public_negatives, **rest)
