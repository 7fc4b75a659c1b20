"""The sweep of signals comes at every moment by both, and sees what is half-written."""

import random
import signal

import pytest

from benchmarks.signals.__main__ import moments_of
from benchmarks.signals.commands import COMMANDS
from benchmarks.signals.whole import half_written
from dpfed.data.generated.shapes import write_shapes


def test_a_sweep_has_every_moment_by_both_signals():
    every = moments_of("config show", random.Random(0))
    assert {moment for moment, _ in every} == {round(0.2 * place, 2) for place in range(1, 101)}
    assert len(set(every)) == len(every) == 200


@pytest.mark.parametrize("name", COMMANDS)
def test_any_first_part_of_a_sweep_is_spread_evenly(name):
    some = moments_of(name, random.Random(0))[:20]
    assert {number for _, number in some} == {signal.SIGINT, signal.SIGTERM}
    assert len({int(moment / 4.0) for moment, _ in some}) >= 5


@pytest.mark.parametrize(
    ("left", "content"),
    [
        ("runs/new/results.json", b'{"epsilon": '),
        ("runs/new/ledger.jsonl", b'{"step": 0}\n{"st'),
        ("runs/new/model/model.safetensors", b"0123"),
        ("features.parquet", b"PAR1"),
        ("runs/.new.partial-0123abcd/config.toml", b""),
        ("report.html", b"<html>"),
        ("out/stores/.mine.lock", b""),
        ("tmp/left", b""),
    ],
)
def test_what_is_half_written_is_found(tmp_path, left, content):
    seed, folder = tmp_path / "seed", tmp_path / "0001"
    (folder / "tmp").mkdir(parents=True)
    assert not half_written(seed, folder)
    (folder / left).parent.mkdir(parents=True, exist_ok=True)
    (folder / left).write_bytes(content)
    assert half_written(seed, folder)
    (seed / left).parent.mkdir(parents=True, exist_ok=True)
    (seed / left).write_bytes(content)  # it was there before, but drafts are nobody's
    assert bool(half_written(seed, folder)) == ("partial" in left or left.startswith(("out", "tmp")))


def test_a_store_is_half_written_if_its_records_changed(tmp_path):
    (tmp_path / "0001" / "tmp").mkdir(parents=True)
    store = tmp_path / "0001" / "out" / "stores" / "mine"
    write_shapes(store, train=20, validation=0, test=5)
    assert not half_written(tmp_path / "seed", tmp_path / "0001")
    write_shapes(tmp_path / "other", train=20, validation=0, test=5, seed=1)
    (store / "records.arrow").write_bytes((tmp_path / "other" / "records.arrow").read_bytes())
    assert half_written(tmp_path / "seed", tmp_path / "0001")
