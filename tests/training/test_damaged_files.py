"""Files with a digest: whatever byte or field of them changes is noticed."""

import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.verification import ledger_of
from dpfed.building.model import facts_of
from dpfed.config import Config, ModelConfig, OptimizerConfig
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.models.folder import describe, save_encoder
from dpfed.privacy.blocks import Blocks
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.noise import digest_of
from dpfed.privacy.plan import PrivacyPlan
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.journal import Journal
from dpfed.runs.resolution import resolve_defaults
from dpfed.training.checkpoint import Checkpoints, Position, _digest, load_weights
from dpfed.training.coordinator import Coordinator
from dpfed.training.post_processing import states_of
from dpfed.training.releases import Releases
from tests.exact_sums import exact

AVERAGE = "post/moving_average/weights"
PLAN = PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.3, 1e-5)


@pytest.fixture
def parts(tmp_path):
    """A model and a coordinator after one step of LARS, whose state has tensors, and of Adam, which counts steps."""
    model = nn.Linear(5, 2)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", PLAN)
    coordinator = Coordinator(PLAN, model, OptimizerConfig(name="adam", ema=0.9), Randomness.from_seed(0), ledger)
    coordinator.apply(0, exact(torch.zeros(12), PLAN))
    return model, coordinator


@pytest.fixture
def saved(parts, tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)
    return checkpoints, checkpoints.save(Position(1, 1, PLAN.fingerprint), *parts)


def average_of(coordinator):
    (average,) = states_of(coordinator.post_processors).values()
    return average


def everything(checkpoints, path, model, coordinator):
    """All that a checkpoint restores."""
    progress = checkpoints.load(path, model, coordinator)
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    return progress, state, str(coordinator.optimizer.state_dict()), average_of(coordinator).tolist()


def test_a_checkpoint_with_any_byte_changed_is_noticed(saved, parts):
    checkpoints, path = saved
    before, whole = path.read_bytes(), everything(checkpoints, path, *parts)
    same, header = 0, 8 + struct.unpack("<Q", before[:8])[0]
    for place in (*range(0, header, 2), *range(header, len(before), 7)):
        damaged = bytearray(before)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            assert everything(checkpoints, path, *parts) == whole, place
            same += 1
        except UserError as error:
            assert path.name in str(error)
    assert same < 20  # blanks in the header that say nothing


@pytest.mark.parametrize("field", ["step", "charged", "fingerprint", "optimizer", "format", "digest"])
def test_a_checkpoint_with_another_header_is_noticed(saved, parts, field):
    checkpoints, path = saved
    with safe_open(path, framework="pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for other in ({**header, field: header[field] + "1"}, {name: value for name, value in header.items() if name != field}):
        save_file(tensors, path, metadata=other)
        with pytest.raises(UserError, match="checkpoint-damaged"):
            checkpoints.load(path, *parts)
    save_file({**tensors, AVERAGE: tensors[AVERAGE].view(3, 4)}, path, metadata=header)  # the same bits in another shape
    with pytest.raises(UserError, match="checkpoint-damaged"):
        checkpoints.load(path, *parts)


def test_a_checkpoint_of_another_format_is_damaged(saved, parts):
    checkpoints, path = saved
    with safe_open(path, framework="pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    other = {**header, "format": "dpfed-checkpoint-1"}
    save_file(tensors, path, metadata=other | {"digest": _digest(tensors, other)})
    for read in (lambda: checkpoints.load(path, *parts), lambda: load_weights(path, parts[0], parts[1].post_processors)):
        with pytest.raises(UserError, match="checkpoint-damaged"):
            read()


def each_byte(path, stride=3):
    """A place and a file's content with the byte there changed, for every third place and the last; all of them were tried."""
    content = path.read_bytes()
    for place in sorted({*range(0, len(content), stride), len(content) - 1}):
        yield place, content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_a_changed_byte_of_a_ledger_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, PLAN, {"fixed_seed": True})
    for step in range(2):
        ledger.charge(Release(step, f"{step:032x}"))
    content = path.read_bytes()
    for place, damaged in each_byte(path):
        path.write_bytes(damaged)
        if place == len(content) - 1:
            assert Ledger.open(path).charged == 1  # as a crash would leave it; the release that is kept tells
            continue
        with pytest.raises(UserError, match=r"line .*\[ledger-damaged"):
            Ledger.open(path)
        path.write_bytes(content)


def test_a_changed_byte_of_a_journal_is_noticed(tmp_path):
    path = tmp_path / "federation.jsonl"
    journal = Journal(path)
    journal.write("opened", 0)
    journal.write("collected", 0, arrived=["a", "b"], missing={}, noise_of_sites=0.5)
    content = path.read_bytes()
    assert Journal(path).lines == journal.lines
    for place, damaged in each_byte(path):
        path.write_bytes(damaged)
        if place == len(content) - 1:
            assert len(Journal(path).lines) == 1
            continue
        with pytest.raises(UserError, match=r"line .*\[journal-damaged"):
            Journal(path)
        assert path.read_bytes() != b""
    path.write_bytes(content.splitlines(keepends=True)[1])  # a line taken out
    with pytest.raises(UserError, match="line 1"):
        Journal(path)


def test_a_collected_step_of_a_journal_names_the_sites_that_answered(tmp_path):
    path = tmp_path / "federation.jsonl"
    Journal(path).write("collected", 0)
    with pytest.raises(UserError, match=r"line 1.*\[journal-damaged"):
        Journal(path)


def test_a_line_of_a_journal_that_is_not_chained_is_damage(tmp_path):
    path = tmp_path / "federation.jsonl"
    path.write_text('{"event": "opened", "step": 0}\n')
    with pytest.raises(UserError, match="line 1"):
        Journal(path)
    path.unlink()
    Journal(path).write("opened", 1)
    path.write_text(path.read_text() + '{"event": "collected", "step": 1}\n')
    with pytest.raises(UserError, match="line 2"):
        Journal(path)


def test_a_kept_release_with_any_byte_changed_is_not_taken(tmp_path):
    releases, noisy = Releases(tmp_path / "releases"), torch.randn(4)
    release = Release(3, digest_of(noisy))
    releases.save(release, noisy)
    [path] = (tmp_path / "releases").iterdir()
    content = path.read_bytes()
    for damaged in (*(damaged for _, damaged in each_byte(path, 1)), content[:-1], content + b"\0\0\0\0"):
        path.write_bytes(damaged)
        assert releases.load(3, Blocks(4)) is None and releases.load(3, Blocks(4), release.digest) is None


FOREIGN = (".nfs000000000123", ".DS_Store", "._00000002.state", "._00000002-ab.f32", "step-00000002 (1).safetensors", "notes")


def test_files_of_the_file_system_are_not_taken_for_a_runs(tmp_path):
    run = RunDirectory(tmp_path)
    Ledger.create(run.ledger, PrivacyPlan.of(1000, 64, 4, 0.5, 20, 1.4, 1e-5))
    for folder in (run.releases, run.commits, run.checkpoints):
        folder.mkdir()
        for name in FOREIGN:
            (folder / name).write_bytes(b"")
    assert ledger_of(run).charged == 0 and Checkpoints(run.checkpoints, 2).paths() == []
    releases = Releases(run.releases)
    releases.save(Release(0, digest_of(torch.randn(4))), torch.randn(4))
    (run.releases / ".00000000-ab.f32.partial").write_bytes(b"")  # a draft that a crash left
    releases.forget(5)
    assert {path.name for path in run.releases.iterdir()} == set(FOREIGN)


def test_a_models_description_with_any_byte_changed_is_noticed(tmp_path):
    config = resolve_defaults(Config(model=ModelConfig(width=8, embedding=16, head_hidden=16)))
    save_encoder(tmp_path, build_model(config.model, config.objective), facts_of(config))
    path = tmp_path / "model.json"
    whole = {name: value for name, value in describe(tmp_path).items() if name != "digest"}
    for _, damaged in each_byte(path):
        path.write_bytes(damaged)
        try:
            left = describe(tmp_path)
        except UserError:
            continue
        assert {name: left.get(name) for name in whole} == whole  # a blank, or the word 'digest' itself
