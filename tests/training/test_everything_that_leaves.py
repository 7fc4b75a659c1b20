"""All that leaves a run is a function of its noisy sums, which carry exactly the planned noise, and epsilon is theirs."""

import dataclasses
import hashlib
import json
import math
import re
import stat

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from safetensors.torch import load_file
from torch import nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.bounding.engines import GroupBatch
from dpfed.config import OptimizerConfig, parse_config
from dpfed.data.sampling import draw_step
from dpfed.errors import UserError
from dpfed.models.folder import load_encoder
from dpfed.models.parameters import TrainableVector
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import digest_of
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Progress
from dpfed.report.card import round_up
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from dpfed.training.checkpoint import Checkpoints, Position
from dpfed.training.coordinator import Coordinator
from dpfed.training.post_processing import states_of
from dpfed.training.releases import Releases
from dpfed.training.worker import Worker
from tests.exact_sums import exact
from tests.training.twins import Noise, files, stores

STEPS = 5
BATCH = 30
RECORDS = 300
SIGMA = 1.7
CLIP = 0.6
IMAGES = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}
JOBS = {
    "adam, average, learnt temperature": {
        "optimizer": {"name": "adam", "learning_rate": 3e-3, "ema": 0.9, "warmup": 2},
        "objective": {"learn_temperature": True},
    },
    "momentum": {
        "model": IMAGES,
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "training": {"checkpoint_every": 1},
        "evaluation": {"split": "none"},
    },
    "released statistics": {"bounding": {"method": "released", "options": {"slots": 8}}, "evaluation": {"split": "none"}},
    "private progress": {
        "bounding": {"group_size": 4, "engine": "loop", "microbatch": 32, "clipping": "adaptive"},
        "diagnostics": "private",
        "progress": {"share": 0.3, "phase": 2},
        "evaluation": {"split": "none"},
    },
}
# What the noise of a step is: for each addition its purpose and standard deviation over sigma.
EXPECTED = {
    "released statistics": [("statistics", math.sqrt(2) / math.sqrt(0.2)), ("noise", CLIP / math.sqrt(0.8))],
    "private progress": [("noise", 2 * CLIP / math.sqrt(1 - 0.3))],
}
GROUPS = [("noise", 2 * CLIP)]


def job(tiny, name):
    tree = {**tiny, "name": "twin", "bounding": {"group_size": 4, "engine": "loop", "microbatch": 32}}
    tree["evaluation"] = {"tasks": ["retrieval"], "every": 2, "records": 100}
    for section, values in JOBS[name].items():
        tree[section] = {**tree.get(section, {}), **values} if section in ("training", "optimizer") else values
    if "method" in tree["bounding"]:
        tree["bounding"] |= {"microbatch": 16}
    tree["bounding"]["clip_norm"] = CLIP
    tree["privacy"] = {"noise_multiplier": SIGMA, "accountant": "rdp", "batch": BATCH, "steps": STEPS, "seed": 3}
    return tree


def names(identity, store):
    """The allow-list of what may differ: the run's random id, and the fingerprint of its records, keyed with a random secret.

    Figures of evaluation are exact, but here the model and the held-out records are the same.
    """
    return [identity.encode(), identity[:16].encode(), store.contents.encode()]


def without(names, moment):
    """The files of a moment without some names, and the ledger without the hash of the card, which has them."""
    card = next((moment[path] for path in moment if str(path).endswith("privacy_card.md")), None)
    for path, content in moment.items():
        if str(path).endswith("ledger.jsonl") and b'"papers"' in content:
            content, _, artifacts = content.removesuffix(b"\n").rpartition(b"\n")
            assert card is not None and json.loads(artifacts)["papers"]["card"] == hashlib.sha256(card).hexdigest()
        if str(path).endswith("model.json"):  # it names the run, and has a hash of all that it says
            content = re.sub(rb'"digest": "[0-9a-f]{64}"', b"", content)
        for name in names:
            content = content.replace(name, b"NAME")
        moment[path] = content
    return moment


class Seen(Progress):
    """Keeps all that it is told."""

    def __init__(self):
        self.said = []

    def stage(self, name, total):
        self.said.append((name, total))
        return lambda done: self.said.append((name, done))

    def note(self, text):
        self.said.append(text)

    def on_evaluation(self, figures):
        self.said.append(list(figures))

    def on_step(self, step):
        self.said.append((step.done, step.scalars()))


@pytest.fixture
def twins(tiny, shapes, tmp_path, monkeypatch, capfd):
    """Runs a job twice, in one place, and returns for each run all that was there to be seen, and its calls for noise."""

    def run(name):
        tree, place = job(tiny, name), tmp_path / "place"
        noise, results, totals = Noise(monkeypatch), [], []
        real = Worker.bounded_sum

        def bounded_sum(self, step):
            totals.append(real(self, step))
            return dataclasses.replace(totals[-1], values=totals[-1].values.clone())

        monkeypatch.setattr(Worker, "bounded_sum", bounded_sum)
        for number, store in enumerate(stores(shapes, tmp_path)):
            (tmp_path / str(number)).rename(place)  # where records lie stands in config.toml
            tree["data"] = {"source": "store", "path": str(place / "store"), "size": 16}
            moments = []
            noise.before = lambda moments=moments: moments.append(files(place / "run") if (place / "run").exists() else {})
            progress = Seen()
            finished = pretrain(parse_config(tree), place / "run", progress)
            moments.append(files(place / "run"))
            moments = [without(names(finished.identity, store), moment) for moment in moments]
            seen = {"moments": moments, "said": progress.said, "printed": tuple(capfd.readouterr())}
            results.append((seen, noise.repeat() if number == 0 else noise.calls, list(totals), finished, store))
            totals.clear()
            place.rename(tmp_path / f"done-{number}")
        return results

    return run


@pytest.mark.parametrize("name", JOBS)
def test_all_that_leaves_a_run_follows_from_its_noisy_sums(twins, name):
    first, second = twins(name)
    # The records and the clean sums have nothing in common ...
    assert all(not torch.equal(one.values, two.values) for one, two in zip(first[2], second[2], strict=True))
    # ... and nothing of it is to be seen: not in a file at any moment, not on the terminal, not by a progress.
    assert first[0]["said"] == second[0]["said"] and first[0]["printed"] == second[0]["printed"] == ("", "")
    assert len(first[0]["moments"]) == len(second[0]["moments"]) > STEPS
    for one, two in zip(first[0]["moments"], second[0]["moments"], strict=True):
        assert one.keys() == two.keys()
        assert [path for path in one if one[path] != two[path]] == []
    # The secret key, and what the owners' randomness is made of, are in the key's own file alone, which nobody else can read.
    keys = [randomness.master for randomness in (Randomness.from_seed(3), Randomness.from_seed(3).for_ranks())]
    for moment in first[0]["moments"]:
        held = [path for path, content in moment.items() for key in keys if key in content or key.hex().encode() in content]
        assert held == [path for path in moment if path == "secret.key"]
    assert any("secret.key" in moment for moment in first[0]["moments"]) and "secret.key" not in first[0]["moments"][-1]
    # The noise: for each step, on every number, of the planned deviation to the last digit, on the clean sum itself, and what
    # is kept, hashed and used is what came out.
    calls, totals = first[1], first[2]
    expected = [(purpose, step, SIGMA * scale) for step in range(STEPS) for purpose, scale in EXPECTED.get(name, GROUPS)]
    assert [(call.purpose, call.step) for call in calls] == [(purpose, step) for purpose, step, _ in expected]
    units = {"noise": totals[0].unit, "statistics": 1.0}  # sums are whole numbers of steps
    assert [call.scale * units[call.purpose] for call in calls] == pytest.approx([scale for *_, scale in expected], rel=1e-12)
    on_sums = [call for call in calls if call.purpose == "noise"]
    run = RunDirectory(first[3].path.parents[1] / "done-0" / "run")
    ledger = Ledger.open(run.ledger)
    for call, total in zip(on_sums, totals, strict=True):
        assert torch.equal(call.clean, total.values)
        released = (call.noisy.double() * total.unit).float()
        assert ledger.release_of(call.step).digest == digest_of(released)
    assert {call.noisy.numel() for call in on_sums} == {totals[0].values.numel()}
    assert {call.noisy.numel() for call in calls if call.purpose == "statistics"} <= {8 * 2 * 16}

    # Between two steps the disk has no more than the state of the last commit, which nobody can read.
    assert any(path.startswith("commits/") for moment in first[0]["moments"] for path in moment)
    assert not any(path.startswith("releases/") for moment in first[0]["moments"] for path in moment)
    assert not run.releases.exists() and not run.commits.exists()
    what_is_exported_is_what_was_measured(run, "average" in name)
    epsilon_is_that_of_all_steps(run)


def what_is_exported_is_what_was_measured(run, averaged):
    tensors = load_file(Checkpoints(run.checkpoints, 1).paths()[-1])
    average = tensors.get("post/moving_average/weights")
    model = load_encoder(run.model)
    weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    assert (average is not None) == averaged
    if averaged:
        parameters = TrainableVector(model)
        assert torch.equal(parameters.gather(), average)
        assert not torch.equal(average, torch.cat([weights[name].flatten() for name in parameters.names]))
    else:
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_secret_key_is_for_its_owners_eyes(tiny_config, tmp_path):
    randomness = Randomness.fresh()
    key = RunDirectory.create(tmp_path / "run", tiny_config, randomness).path / "secret.key"
    assert (key.read_bytes(), stat.S_IMODE(key.stat().st_mode)) == (randomness.master, 0o600)
    assert randomness.master != Randomness.fresh().master


def epsilon_is_that_of_all_steps(run):
    """By an accountant of its own."""

    def epsilon(steps):
        step = dp_accounting.PoissonSampledDpEvent(BATCH / RECORDS, dp_accounting.GaussianDpEvent(SIGMA))
        spent = RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(step, steps))
        return float(spent.get_epsilon(1 / (RECORDS * math.log(RECORDS))))

    assert epsilon(STEPS) > 1.02 * epsilon(STEPS - 1)  # one step less would show
    privacy = json.loads(run.results.read_text())["privacy"]
    assert privacy["epsilon"] == pytest.approx(epsilon(STEPS), rel=1e-9)
    assert privacy["delta"] == pytest.approx(1 / (RECORDS * math.log(RECORDS)), rel=1e-12)
    assert (privacy["steps_charged"], privacy["sampling_rate"]) == (STEPS, BATCH / RECORDS)
    assert Ledger.open(run.ledger).epsilon == pytest.approx(epsilon(STEPS), rel=1e-9)
    by_step = {line["step"]: line["epsilon"] for line in run.metric_lines() if "epsilon" in line}
    assert by_step == {step: pytest.approx(epsilon(step), rel=1e-9) for step in range(1, STEPS + 1)}
    card = run.card.read_text()
    assert re.search(rf"\b{re.escape(round_up(epsilon(STEPS)))}\b", card)
    step = dp_accounting.PoissonSampledDpEvent(BATCH / RECORDS, dp_accounting.GaussianDpEvent(SIGMA))
    other = PLDAccountant(value_discretization_interval=1e-3).compose(dp_accounting.SelfComposedDpEvent(step, STEPS))
    assert privacy["epsilon_pld"] == pytest.approx(other.get_epsilon(privacy["delta"]), rel=5e-3)


PLAN = PrivacyPlan.of(1000, 4, 4, 0.5, 4, 1.3, 1e-5)
SIZE = 4096


class Row(nn.Linear):
    def __init__(self):
        super().__init__(SIZE, 1, bias=False)


@pytest.mark.parametrize("rate", [0.1, 1e9])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars"])
def test_all_of_a_coordinator_follows_from_the_noisy_sum(name, rate, tmp_path, monkeypatch):
    """Weights, average, the optimizer's state, figures, files, and the words with which a run ends that diverged."""
    noise, results = Noise(monkeypatch), []
    for number, size in enumerate((0.1, 40.0)):
        torch.manual_seed(0)
        folder, model = tmp_path / str(number), Row()
        folder.mkdir()
        ledger, releases = Ledger.create(folder / "ledger.jsonl", PLAN), Releases(folder / "releases")
        config = OptimizerConfig(name=name, learning_rate=rate, ema=0.9, momentum=0.9)
        coordinator = Coordinator(PLAN, model, config, Randomness.from_seed(0), ledger, releases)
        told = []
        try:
            for step in range(PLAN.steps):
                total = exact(size * torch.randn(SIZE), PLAN)
                summary = coordinator.apply(step, total)
                told.append((summary, summary.metrics()))
                gradient = noise.calls[-1].noisy.double() * PLAN.grid_of().unit
                told.append(gradient.norm().item() / PLAN.divisor)
                Checkpoints(folder, 9).save(Position(step + 1, ledger.charged, PLAN.fingerprint), model, coordinator)
        except UserError as error:
            assert rate > 1
            told.append(str(error))
        results.append((told, {name: value.clone() for name, value in model.state_dict().items()}, files(folder)))
        if number == 0:
            noise.repeat()
    (told, state, written), (again, same, rewritten) = results
    assert told[0] == again[0] and [one for one in told if isinstance(one, (str, tuple))] == [
        one for one in again if isinstance(one, (str, tuple))
    ]
    assert all(torch.equal(value, same[key]) or not value.isfinite().all() for key, value in state.items())
    assert written == rewritten
    assert all(parameter.grad is None for parameter in model.parameters())
    if rate < 1:  # the norm is that of the noisy gradient
        norms = [one[0].noisy_gradient_norm for one in told if isinstance(one, tuple)]
        assert norms == pytest.approx([one for one in told if isinstance(one, float)], rel=1e-6)


def test_the_average_is_over_the_weights_after_every_step(tmp_path):
    model = Row()
    config = OptimizerConfig(name="sgd", learning_rate=0.3, momentum=0.0, ema=0.7)
    coordinator = Coordinator(PLAN, model, config, Randomness.from_seed(0), Ledger.create(tmp_path / "ledger.jsonl", PLAN))
    expected = model.weight.detach().flatten().double()
    (average,) = states_of(coordinator.post_processors).values()
    for step in range(PLAN.steps):
        coordinator.apply(step, exact(torch.randn(SIZE), PLAN))
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().flatten().double()
        assert torch.allclose(average.double(), expected, atol=1e-6)


def test_groups_that_hold_no_record_count_in_the_divisor(tiny):
    """The sum is that of the groups that are there, and K divides it, in one process as anywhere."""
    tiny["bounding"]["group_size"] = 2
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 30, "steps": 3}
    parts = build(parse_config(tiny), Randomness.from_seed(5))
    worker, randomness, indices = (
        parts.learner.worker(Randomness.from_seed(5)),
        Randomness.from_seed(5),
        parts.store.split("train"),
    )
    for step in range(3):
        draw = draw_step(parts.plan, randomness, step, indices, parts.store.keys[indices], parts.plan.groups)
        assert len(draw) < parts.plan.groups == 15  # some are empty
        total, expected = worker.bounded_sum(step), worker.engine.zeros().long()
        for group in range(len(draw)):
            views = worker.views(draw.members(group), randomness, step, torch.device("cpu"))
            batch = GroupBatch(views, [0, len(draw.members(group))], step)
            worker.engine.add_clipped(batch, worker._clip, expected)
        assert torch.equal(total.values, expected)
        assert (total.groups, total.sensitivity) == (15, 2 * parts.plan.bounding.clip_norm)
    assert parts.plan.divisor == 15
