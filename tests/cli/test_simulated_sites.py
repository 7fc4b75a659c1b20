"""`dpfed pretrain --federated N`: its options, and what is refused in one sentence."""

import json
import re

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.progress import Silent
from dpfed.runs.job import resume_job
from tests.sparing import sparing


@pytest.fixture
def source(tiny, tmp_path):
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 60, "steps": 2}
    tiny["evaluation"] = {"split": "none"}
    path = tmp_path / "config.toml"
    path.write_text(parse_config(tiny).dump())
    return path


@pytest.mark.long
@pytest.mark.parametrize("trust", sparing(["central", "distributed", "secure", "local"], "secure", "local"))
def test_each_mode_ends_with_a_card_that_names_it_and_its_sites(dpfed, source, tmp_path, trust):
    code, _, error = dpfed("pretrain", source, "--run", tmp_path / "run", "--federated", 3, "--trust", trust, "--json")
    assert code == 0 and "error" not in error and error.startswith("tiny: the run goes to ")  # what is JSON alone is stdout
    run = RunDirectory.open(tmp_path / "run")
    card = run.card.read_text()
    assert f"| Trust | {trust}: " in card and card.count("\n- site-") == 3
    assert json.loads(run.results.read_text())["privacy"]["guarantee"]
    assert ("The epsilon above holds against whoever sees only the model" in card) == (trust in ("distributed", "local"))
    assert not (run.path / "secret.key").exists()
    told = json.loads(dpfed("privacy", "ledger", run.path, "--json")[1])
    assert (told["owners"], told["trust"]) == (3, trust)
    shown = dpfed("privacy", "ledger", run.path)[1]
    assert f"3 sites; trust: {trust}: " in shown and "workers that saw" not in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trust", "secure"], "--trust secure .*option-federated-only"),
        (["--skew", "0.5"], "--skew 0.5 .*option-federated-only"),
        (["--federated", "1"], "--federated 1:.*option-federated-wrong"),
        (["--federated", "3", "--skew", "1.5"], "--skew 1.5:.*option-federated-wrong"),
        (["--federated", "3", "--cluster", "ray"], "option-cluster-unused"),
        (["--federated", "3", "--trust", "secure", "--drops", "2", "--colluders", "0"], "bear at most 1 missing"),
        (["--federated", "16"], "run-workers-many"),
    ],
)
def test_what_does_not_fit_together_is_refused(dpfed, source, tmp_path, options, said):
    code, _, error = dpfed("pretrain", source, "--run", tmp_path / "run", *options)
    assert code == 2 and re.search(said, error) and error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_simulated_run_is_no_clusters_and_no_other_simulations(dpfed, source, tmp_path):
    run = tmp_path / "run"
    assert dpfed("pretrain", source, "--run", run, "--federated", 2, "--json")[0] == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, _, error = dpfed("pretrain", source, "--run", run, "--federated", 2)
    assert code == 2 and "run-in-use" in error
    code, _, error = dpfed("pretrain", source, "--run", run, "--federated", 3, "--resume", "--json")
    assert code == 2 and "2 sites" in error
    with pytest.raises(UserError, match="simulates a federation.*resume-simulated"):  # as a cluster would take it
        resume_job(RunDirectory.open(run), Silent(), world_size=2)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
