"""A GPU that fails in the middle of a run: one sentence, nothing lost, each step charged once."""

import shutil
import sys

import pytest

from dpfed.bounding.engines import LoopEngine
from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.runs.pretraining import pretrain, resume


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later", "the GPU failed"),
        ("Triton Error [CUDA]: unspecified launch failure", "the GPU failed"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "not enough memory"),
    ],
)
def test_a_gpu_that_fails_in_mid_run_loses_nothing(said, words, tiny, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(parse_config(tiny).dump())
    honest, calls = LoopEngine.add_clipped, []

    def failing(*given):
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError(said)
        return honest(*given)

    monkeypatch.setattr(LoopEngine, "add_clipped", failing)
    monkeypatch.setattr(sys, "argv", ["dpfed", "pretrain", str(tmp_path / "tiny.toml"), "--run", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    heard = capsys.readouterr().err
    assert ended.value.code == 2 and words in heard and said.split("\n")[0] in heard and "Traceback" not in heard
    before = Ledger.open(tmp_path / "run" / "ledger.jsonl")
    assert 0 < before.charged < 6
    resume(tmp_path / "run")
    require_kept(before, tmp_path / "run")


@pytest.mark.parametrize(
    ("said", "words"), [("CUDA error: launch failure", "repeat the command"), ("out of memory", "a machine with more")]
)
def test_what_is_said_of_a_machine_fits_commands_that_are_no_run(said, words, shapes, dpfed, monkeypatch):
    def failing(*_):
        raise RuntimeError(said)

    monkeypatch.setattr("dpfed.data.store.records.RecordStore.open", failing)
    code, _, error = dpfed("budget", "show", shapes.path)
    assert code == 2 and words in error


def require_kept(before, run):
    after = Ledger.open(run / "ledger.jsonl")
    kept = range(before.charged)
    assert after.charged == 6 and [after.release_of(step) for step in kept] == [before.release_of(step) for step in kept]


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
def test_engines_of_other_bits_release_no_step_twice(lost, tiny, tmp_path, monkeypatch):
    """As after an update of dpfed or torch, or on another GPU: a run goes on from its last commit, with new steps."""
    honest = LoopEngine.add_clipped

    def failing(self, batch, *given):
        if batch.step == 5:  # step 4 lies behind the last checkpoint
            raise RuntimeError("CUDA error: unspecified launch failure")
        return honest(self, batch, *given)

    def rounding_otherwise(self, batch, clip, into, *rest):
        norms = honest(self, batch, clip, into, *rest)
        into.add_(1)
        return norms

    monkeypatch.setattr(LoopEngine, "add_clipped", failing)
    with pytest.raises(RuntimeError):
        pretrain(parse_config(tiny), tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    before, written = Ledger.open(ledger), ledger.read_bytes()
    monkeypatch.setattr(LoopEngine, "add_clipped", rounding_otherwise)
    assert [path.name for path in (tmp_path / "run").glob("commits/*")] == ["00000005.state"]
    if not lost:
        resume(tmp_path / "run")
        return require_kept(before, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "commits")
    with pytest.raises(UserError, match="released before and comes out differently"):
        resume(tmp_path / "run")
    assert ledger.read_bytes() == written
