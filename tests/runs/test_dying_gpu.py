"""A GPU that fails in the middle of a run: one sentence, nothing lost, each step charged once."""

import sys

import pytest

from dpfed.bounding.engines import LoopEngine
from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger
from dpfed.runs.pretraining import resume


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
    ledger = tmp_path / "run" / "ledger.jsonl"
    before = Ledger.open(ledger)
    assert 0 < before.charged < 6
    resume(tmp_path / "run")
    after = Ledger.open(ledger)
    kept = range(before.charged)
    assert after.charged == 6 and [after.release_of(step) for step in kept] == [before.release_of(step) for step in kept]
