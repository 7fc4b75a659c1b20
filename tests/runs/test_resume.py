"""Interruptions: the same parameters, bit for bit, and never a smaller epsilon than was spent."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import read_view
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.federation import simulation
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import resume, simulate
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs import pretraining
from dpfed.runs.pretraining import pretrain
from dpfed.runs.resolution import resolve_defaults
from dpfed.training.checkpoint import Checkpoints
from dpfed.training.coordinator import Coordinator
from dpfed.training.worker import Worker
from tests.conftest import tiny_tree
from tests.killed import Killed, killed
from tests.patience import Patience
from tests.sparing import sparing


@pytest.fixture
def seeded(tiny):
    return parse_config({**tiny, "privacy": {**tiny["privacy"], "seed": 11}})


def outcome(run):
    results = json.loads(run.results.read_text())
    return load_file(run.model / "model.safetensors"), results


def same(one, two):
    return set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)


def interrupted(config, folder, at=5):
    with killed(Coordinator, "apply", at, before=False):
        pretrain(config, folder)


@pytest.fixture(scope="module")
def first_stopped(shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    interrupted(parse_config(tiny_tree(shapes)), folder)
    return folder


@pytest.fixture
def stopped(first_stopped, tmp_path):
    """The tiny run, which ended after step 5, to break."""
    return shutil.copytree(first_stopped, tmp_path / "run")


PLACES = {
    "unpaid": (Ledger, "charge", True),
    "paid": (Ledger, "charge", False),
    "applied": (Coordinator, "apply", False),
    "unsaved": (Checkpoints, "save", True),
}
OFTEN = {(1, "unpaid"), (2, "applied"), (4, "unsaved"), (5, "paid")}
DEATHS = [
    pytest.param(at, *PLACES[place], id=f"{at}-{place}", marks=[pytest.mark.slow] * ((at, place) not in OFTEN))
    for at in range(1, 7)
    for place in PLACES
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    cache = {}

    def get(config):
        key = config.dump()
        if key not in cache:
            cache[key] = outcome(pretrain(config, tmp_path_factory.mktemp("undisturbed") / "run"))
        return cache[key]

    return get


@pytest.mark.long
@pytest.mark.parametrize(("at", "owner", "method", "before"), DEATHS)
def test_resume_from_every_step_gives_the_same_bits(seeded, tmp_path, undisturbed, at, owner, method, before):
    weights, results = undisturbed(seeded)
    folder = tmp_path / "run"
    ends = method == "apply" or at <= 4  # four checkpoints in all, and four groups of steps that are charged together
    with killed(owner, method, at, before) if ends else contextlib.nullcontext():
        pretrain(seeded, folder)
    assert RunDirectory.open(folder).finished == (not ends)
    spent = Ledger.open(folder / "ledger.jsonl").charged
    run = resume(folder)
    again, results_again = outcome(run)
    assert same(weights, again)
    assert results_again["evaluations"] == results["evaluations"]
    ledger = Ledger.open(run.ledger)
    assert ledger.charged == 6 >= spent  # each release paid for exactly once
    curve = {line["step"]: line["epsilon"] for line in run.metric_lines() if "epsilon" in line}
    assert curve == {step: ledger.plan.epsilon(step) for step in range(1, 7)}  # also of steps that were taken twice
    assert read_view(folder).spent == [(0, 0.0), *curve.items()]
    assert results_again["privacy"]["epsilon"] == ledger.epsilon == results["privacy"]["epsilon"]


@pytest.mark.long
def test_a_clock_that_was_set_back_changes_nothing(seeded, tmp_path, undisturbed):
    folder = tmp_path / "run"
    interrupted(seeded, folder)
    later = time.time() + 10 * 86_400
    for number, path in enumerate(sorted(folder.rglob("*"), reverse=True)):  # and in no order that a clock would give
        os.utime(path, (later + number, later + number))
    weights, results = undisturbed(seeded)
    again, results_again = outcome(resume(folder))
    assert same(weights, again) and results_again["evaluations"] == results["evaluations"]
    assert results_again["privacy"] == results["privacy"] and read_view(folder).results is not None


@pytest.mark.long
def test_a_run_goes_on_from_its_last_commit_with_any_engine(tiny, tmp_path):
    """No charged step is computed again: another engine, or another number of threads, may come to other bits."""
    tiny["privacy"]["seed"] = 11
    folder = tmp_path / "run"
    interrupted(parse_config(tiny), folder, at=5)
    before = Ledger.open(folder / "ledger.jsonl")
    other_engine(folder)
    ledger = Ledger.open(resume(folder).ledger)
    assert (before.charged, ledger.charged, ledger.replays) == (5, 6, 0)
    assert all(ledger.release_of(step) == before.release_of(step) for step in range(5))


def other_engine(folder):
    text = (folder / "config.toml").read_text().replace('engine = "loop"', 'engine = "layerwise"')
    (folder / "config.toml").write_text(text)


@pytest.mark.long
def test_a_step_that_cannot_be_repeated_is_refused(stopped):
    other_engine(stopped)
    shutil.rmtree(stopped / "commits")
    before = (stopped / "ledger.jsonl").read_bytes()
    with pytest.raises(UserError, match="released before"):
        resume(stopped)
    assert (stopped / "ledger.jsonl").read_bytes() == before


@pytest.mark.long
def test_marks_cannot_be_taken_off_a_run_on_the_way(tiny, tmp_path):
    tiny["privacy"]["seed"] = 11
    folder = tmp_path / "run"
    interrupted(parse_config(tiny), folder)
    text = (folder / "config.toml").read_text()
    assert "seed = 11\n" in text
    (folder / "config.toml").write_text(text.replace("seed = 11\n", ""))
    with pytest.raises(UserError, match="resume-marks"):
        resume(folder)


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bits(seeded, tmp_path, undisturbed):
    weights, _ = undisturbed(seeded)
    folder, source = tmp_path / "run", tmp_path / "config.toml"
    source.write_text(seeded.dump())
    command = [sys.executable, "-m", "dpfed", "pretrain", str(source), "--run", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ledger, patience = folder / "ledger.jsonl", Patience(120)
    while not patience.ended and not (ledger.exists() and ledger.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = subprocess.run(
        [sys.executable, "-m", "dpfed", "resume", str(folder), "--json"], env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    again, _ = outcome(RunDirectory.open(folder))
    assert same(weights, again)
    assert json.loads(finished.stdout)["privacy"]["steps_charged"] == 6


@pytest.mark.long
def test_a_finished_run_is_returned_as_it_is_and_its_key_is_gone(tiny_config, tmp_path):
    run = pretrain(tiny_config, tmp_path / "run")
    steps = [int(path.stem.removeprefix("step-")) for path in Checkpoints(run.checkpoints, 2).paths()]
    assert steps == [0, 4, 6]  # the untrained model and the last two
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert not (run.path / "secret.key").exists() and not list(run.checkpoints.glob("*.partial"))
    assert resume(run.path).finished
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.long
def test_damaged_or_missing_pieces_change_nothing(stopped):
    folder = stopped
    for victim in (folder / "ledger.jsonl", folder / "secret.key"):
        original = victim.read_bytes()
        for harm in (damage, lambda path: path.write_bytes(path.read_bytes()[:10]), lambda path: path.unlink()):
            if victim.name == "secret.key" and harm is damage:
                continue  # another key of the right length: steps since the last checkpoint come out differently
            harm(victim)
            before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
            with pytest.raises(UserError) as caught:
                resume(folder)
            assert victim.name in str(caught.value)
            assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
            victim.write_bytes(original)
    assert resume(folder).finished


HARMS = {
    "changed": damage,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.long
@pytest.mark.parametrize("harm", sparing(HARMS, "changed", "gone"))
@pytest.mark.parametrize("at", sparing([3, 5], 5))
@pytest.mark.parametrize("state", ["whole", "lost"])
def test_a_run_goes_on_though_its_newest_checkpoint_is_damaged(seeded, tmp_path, monkeypatch, undisturbed, harm, at, state):
    """From its last commit. If that is lost, too, from the checkpoint before: charged steps then come out as they were."""
    folder, said = tmp_path / "run", []
    interrupted(seeded, folder, at)
    *_, before, newest = sorted((folder / "checkpoints").iterdir())
    HARMS[harm](newest)
    first = at
    if state == "lost":
        shutil.rmtree(folder / "commits")
        first = int(before.stem.removeprefix("step-"))
    computed, bounded_sum, (weights, results) = [], Worker.bounded_sum, undisturbed(seeded)
    monkeypatch.setattr(Worker, "bounded_sum", lambda self, step: (computed.append(step), bounded_sum(self, step))[1])
    progress = Silent()
    progress.note = said.append
    run = resume(folder, progress)
    again, results_again = outcome(run)
    assert same(weights, again) and results_again["privacy"] == results["privacy"]
    assert computed == list(range(first, 6))
    ledger = Ledger.open(run.ledger)
    assert ledger.charged == 6 and ledger.resumed == [first] and ledger.replays == at - first
    named = [text for text in said if f"{newest.name} is damaged: resuming after step {first};" in text]
    assert len(named) == (harm != "gone" and state == "lost")


def test_all_damaged_checkpoints_are_named_and_nothing_goes_on(stopped):
    folder = stopped
    kept = sorted((folder / "checkpoints").iterdir())
    for path in kept:
        damage(path)
    shutil.copytree(folder / "commits", folder.parent / "commits")
    shutil.rmtree(folder / "commits")
    ledger = (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(UserError, match="all checkpoints .* are damaged") as caught:
        resume(folder)
    assert all(path.name in str(caught.value) for path in kept) and (folder / "ledger.jsonl").read_bytes() == ledger
    shutil.copytree(folder.parent / "commits", folder / "commits")
    assert resume(folder).finished  # the state of the last commit is enough


@pytest.mark.long
def test_a_ledger_knows_when_its_run_was_interrupted(tiny_config, tmp_path, dpfed):
    folder = tmp_path / "run"
    interrupted(tiny_config, folder, at=3)
    with killed(Coordinator, "apply", 2, before=False):
        resume(folder)
    resume(folder)
    assert Ledger.open(folder / "ledger.jsonl").resumed == [3, 5]
    code, out, _ = dpfed("privacy", "ledger", folder)
    assert code == 0 and "interrupted: 2; resumed after 3, 5 steps" in out
    assert dpfed("privacy", "verify", folder / "privacy_card.md", folder)[0] == 0


def test_a_ledger_that_lost_its_last_lines_is_refused(stopped):
    lines = (stopped / "ledger.jsonl").read_text().splitlines(keepends=True)
    (stopped / "ledger.jsonl").write_text("".join(lines[:3]))
    with pytest.raises(UserError, match="resume-ledger-behind|training-line"):
        resume(stopped)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "another"}, r"different plans.*\[resume-other-plan"),
        ({"charged": 99}, r"the checkpoint .* includes 99 releases.*\[resume-ledger-behind"),
    ],
)
def test_a_checkpoint_that_is_not_of_this_ledger_is_refused(tiny_config, tmp_path, monkeypatch, change, said):
    save = Checkpoints.save

    def other(self, progress, *rest):
        return save(self, dataclasses.replace(progress, **change), *rest)

    monkeypatch.setattr(Checkpoints, "save", other)
    interrupted(tiny_config, tmp_path / "run", at=3)
    shutil.rmtree(tmp_path / "run" / "commits")
    with pytest.raises(UserError, match=said):
        resume(tmp_path / "run")


def test_two_processes_cannot_train_the_same_run(stopped):
    with RunDirectory.open(stopped).locked(), pytest.raises(UserError, match="in use"):
        resume(stopped)


OTHERS = {
    "data.size": 8,
    "views.jitter": 0.25,
    "model.width": 9,
    "objective.temperature": 0.5,
    "bounding.clip_norm": 2.0,
    "privacy.steps": 7,
    "optimizer.learning_rate": 0.5,
    "training.keep": 5,
    "evaluation.every": 1,
}


@pytest.mark.parametrize("key", OTHERS)
def test_a_run_goes_on_with_its_own_configuration_only(tiny, tmp_path, key):
    run = RunDirectory.create(tmp_path / "run", resolve_defaults(parse_config(tiny)), Randomness.from_seed(0))
    section, name = key.split(".")
    run.refuse_another(resolve_defaults(parse_config(tiny)))
    other = {**tiny, section: {**tiny.get(section, {}), name: OTHERS[key]}}
    with pytest.raises(UserError, match=f"{key} = .* now says {OTHERS[key]}.*resume-config-changed"):
        run.refuse_another(resolve_defaults(parse_config(other)))


@pytest.mark.parametrize("sites", [None, 3])
def test_who_trains_a_run_holds_it_to_the_end(tiny_config, tmp_path, monkeypatch, sites):
    """Whoever begins it, and whoever goes on with it: another process would draw and pay for the same steps."""
    folder, held = tmp_path / "run", []

    def run_job(job, *_, **__):
        with pytest.raises(UserError, match="in use"), RunDirectory.open(folder).locked():
            pass
        held.append(job)
        raise Killed

    for room in (pretraining, simulation):
        monkeypatch.setattr(room, "run_job", run_job)
    with pytest.raises(Killed):
        simulate(tiny_config, folder, Simulation(sites=sites)) if sites else pretrain(tiny_config, folder)
    with pytest.raises(Killed):
        resume(folder)
    assert len(held) == 2
    with RunDirectory.open(folder).locked():  # who ended holds nothing
        pass


def test_a_checkpoint_cut_short_by_a_kill_is_gone_in_the_end(stopped):
    run = RunDirectory.open(stopped)
    for step in (0, 6):  # the first is never written again: this one was killed after it had its name
        draft = run.checkpoints / f".step-{step:08d}.safetensors.partial"
        draft.mkdir(mode=0o700)
        (draft / ".tmpA1b2").write_bytes(b"half of it")
    (run.path / ".results.json.partial").write_bytes(b"half of it")
    assert resume(run.path).finished
    assert not list(run.path.rglob("*.partial"))


@pytest.mark.parametrize("old, new, said", [("width = 8\n", "width = 16\n", "does not fit"), ("ema = 0.0", "ema = 0.5", "ema")])
def test_model_and_moving_average_cannot_change_midway(stopped, old, new, said):
    (stopped / "config.toml").write_text((stopped / "config.toml").read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=said):
        resume(stopped)


@pytest.mark.long
def test_a_crash_in_the_ledgers_first_line_loses_nothing(tiny_config, tmp_path):
    folder = tmp_path / "run"
    with killed(Checkpoints, "save"):  # the first one, right after the ledger began
        pretrain(tiny_config, folder)
    (folder / "ledger.jsonl").write_bytes(b'{"ledger": 1, "fing')
    assert resume(folder).finished


@pytest.mark.long
def test_a_state_is_kept_until_its_checkpoint_is_on_disk(tiny_config, tmp_path, monkeypatch):
    save, kept = Checkpoints.save, []

    def watched(self, progress, model, coordinator):
        kept.append((progress.step, [path.name for path in (tmp_path / "run").glob("commits/*")]))
        return save(self, progress, model, coordinator)

    monkeypatch.setattr(Checkpoints, "save", watched)
    run = pretrain(tiny_config, tmp_path / "run")
    assert kept == [(0, []), *((step, [f"{step:08d}.state"]) for step in (2, 4, 6))]
    assert not (run.path / "commits").exists()


@pytest.mark.long
def test_a_key_that_a_crash_left_behind_is_forgotten(tiny_config, tmp_path):
    with killed(RunDirectory, "delete_secrets"):
        pretrain(tiny_config, tmp_path / "run")
    assert (tmp_path / "run" / "secret.key").exists()
    resume(tmp_path / "run")
    assert not (tmp_path / "run" / "secret.key").exists()
