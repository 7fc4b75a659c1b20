"""A GPU that fails in the middle of a run: one sentence, nothing lost, each step charged once."""

import sys

import pytest
from dpfed.runs.pretraining import resume

from dpfed.bounding.engines import LoopEngine
from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later", "the GPU stopped computing"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "not enough memory"),
    ],
)
def test_a_gpu_that_fails_in_mid_run_loses_nothing(said, words, tiny, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(parse_config(tiny).dump())
    honest, calls = LoopEngine.add_clipped, []

    def failing(*given):
        calls.append(1)
        if len(calls) == 8:  # the second half of the fourth step
            raise RuntimeError(said)
        return honest(*given)

    monkeypatch.setattr(LoopEngine, "add_clipped", failing)
    monkeypatch.setattr(sys, "argv", ["dpfed", "pretrain", str(tmp_path / "tiny.toml"), "--run", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    heard = capsys.readouterr().err
    assert ended.value.code == 2 and words in heard and said.split("\n")[0] in heard and "Traceback" not in heard
    ledger = tmp_path / "run" / "ledger.jsonl"
    assert Ledger.open(ledger).charged == 3
    resume(tmp_path / "run")
    assert Ledger.open(ledger).charged == 6
