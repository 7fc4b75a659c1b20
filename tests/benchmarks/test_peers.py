"""What is compared computes the same, and the figures of the comparison come together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environment, oracle, page, results, torch_steps, turns
from benchmarks.peers.__main__ import LARGEST, check
from benchmarks.peers.contenders import SAMPLERS
from dpfed.bounding.engines import LoopEngine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", [1, 4, 16])
def test_all_that_are_here_compute_the_same_clipped_sum(size):
    found = oracle.differences(size)
    assert {"dpfed", "torch.func"} <= found.keys() and ("Opacus, ghost" in found) == (size == 1)
    assert max(found.values()) < LARGEST


def test_a_sum_that_differs_is_refused(monkeypatch):
    honest = torch_steps.torch_func

    def other(problem, at_once):
        step = honest(problem, at_once)
        return lambda: 1.001 * step()

    monkeypatch.setattr(torch_steps, "torch_func", other)
    with pytest.raises(SystemExit, match="not the same sum"):
        check()


def test_half_of_the_gradients_are_clipped_when_sums_are_compared(monkeypatch):
    """Else a contender that does not clip, or clips to another norm, would pass."""
    monkeypatch.setattr("benchmarks.peers.torch_steps.torch_func", torch_steps.without_privacy)
    assert oracle.differences(4)["torch.func"] > 0.01
    norms = []
    honest = LoopEngine.add_clipped

    def watched(self, batch, clip_norm, into, losses=None):
        found = honest(self, batch, clip_norm, into, losses)
        norms.append(float((found > clip_norm).float().mean()))
        return found

    monkeypatch.setattr(LoopEngine, "add_clipped", watched)
    oracle.differences(4)
    assert any(0.3 < share < 0.7 for share in norms)


def test_the_samplers_draw_as_many_as_they_should():
    for name, sampler in SAMPLERS.items():
        if sampler.there:
            draw = sampler.make({"records": 20_000, "batch": 400}, 0)
            drawn = []
            for _ in range(1 + 50 // draw.steps):
                draw()
                drawn.append(draw.drawn)
            assert sum(drawn) / len(drawn) == pytest.approx(400, abs=6 * (400 / (len(drawn) * draw.steps)) ** 0.5), name


def test_a_contender_that_ends_is_told_apart():
    with turns.cases(["dpfed sampler"]) as ones, pytest.raises(SystemExit, match="dpfed sampler ended"):
        ones["dpfed sampler"].ask(prepare={"nothing": 1}, at_once=0)


def test_parts_come_together_in_one_file_and_on_one_page(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.record.RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.peers.results.RESULTS", tmp_path)
    one = {"seconds": [2.0, 1.0, 3.0], "ratio": 2.0, "step_mb": 10.0, "at_once": 4}
    own = one | {"seconds": [4.0, 4.0, 4.0], "ratio": 4.0, "at_once": "layerwise"}
    cell = {"contenders": {"no privacy": one, "dpfed": own, "torch.func": one}, "left_out": ["jax_privacy"]}
    results.keep("check", {"S = 4": {"differences": {"dpfed": 1e-6}}})
    assert page.steps() == page.rounds() == "Not measured yet." and page.faster() == "In no cell."
    results.keep("step", {"small CNN, S = 4, B = 256": cell}, rounds=3)
    results.keep("step", {"small CNN, S = 4, B = 1024": cell, "ViT-B-32, B = 16": cell | {"left_out": []}}, rounds=3)
    results.keep("sampling", {"N = 1,000, B = 50": {"contenders": {"dpfed sampler": one}}}, rounds=3)
    results.keep("federation", {"1 MB": {"contenders": {"dpfed, secure": one, "Flower, FedAvg": one}}}, sites=3, rounds=3)
    assert list(results.kept("step")) == ["small CNN, S = 4, B = 256", "small CNN, S = 4, B = 1024", "ViT-B-32, B = 16"]
    table = page.steps()
    assert "| **dpfed** | 4.00, 4.00; 10 MB |" in table and "left out: too long" in table and "Opacus" not in table
    assert "torch.func takes 0.50 (small CNN, S = 4, B = 256), 0.50" in page.faster() and "no privacy" not in page.faster()
    assert "2.0 s" in page.rounds() and "2,000.00 ms" in page.sampling() and "10 MB" in page.clip()
    monkeypatch.setattr(page, "PICTURE", tmp_path / "peers.png")
    page.picture()
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_the_lock_file_has_the_versions_of_the_project():
    lines = {
        line.partition("==")[0]: line.partition("==")[2].split()[0]
        for line in environment.LOCK.read_text().splitlines()
        if "==" in line and "python_full_version" not in line
    }
    project = (ROOT / "requirements.lock").read_text()
    for name in ("torch", "opacus", "flwr", "open-clip-torch"):
        assert f"{name}=={lines[name]} " in project, name
    assert "jax-privacy" in lines and "://" not in environment.LOCK.read_text()


@pytest.mark.slow
def test_it_works_in_small_as_a_process():
    done = _run(sys.executable, "-m", "benchmarks.peers", "--tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("small CNN, S = 16, B = 32", "torch.func", "Opacus, ghost", "dpfed sampler"):
        assert words in done.stdout


def test_a_table_says_the_machine_and_which_column_where_there_are_several(monkeypatch):
    def said(*machines):
        cells = {
            f"small CNN, S = {size}, B = {batch}": {"cores": 1, "hardware": machine, "contenders": {}, "left_out": []}
            for size, batch, machine in machines
        }
        part = {"cells": cells, "packages": {}, "rounds": 2}
        monkeypatch.setattr(page, "figures", lambda _: {"step": part})
        return page.steps().splitlines()[-1]

    assert said((1, 256, "one"), (4, 1024, "one")).startswith("one. Medians")
    assert said((1, 256, "one"), (4, 256, "other"), (1, 1024, "one")).startswith(
        "B = 256: one or other; B = 1,024: one. Medians"
    )


@pytest.mark.skipif(not (environment.PLACE / "bin" / "python").exists(), reason="the peers' environment is not there")
def test_in_the_peers_environment_all_compute_the_same_clipped_sum():
    words = "from benchmarks.peers.__main__ import check; check()"
    done = _run(environment.PLACE / "bin" / "python", "-c", words)
    assert done.returncode == 0 and done.stdout.count("jax_privacy") == 3, done.stdout + done.stderr


def _run(python, *words):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(python), *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
