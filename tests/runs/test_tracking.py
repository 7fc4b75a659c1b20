"""What reaches W&B and MLflow is what the card covers, after it is paid for and on the card; stand-ins record every call."""

import json
import socket
import sys
import types

import numpy as np
import pytest

from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.privacy.ledger import Ledger

STEPS = 2


@pytest.fixture
def config(tiny, tmp_path):
    """Writes a configuration over private records that measures the model."""
    with StoreWriter(tmp_path / "clinic", name="clinic", kind="image-text", size=16, public=False) as writer:
        for number in range(80):
            image = np.full((16, 16, 3), 3 * number, np.uint8)
            writer.add(RecordInput(f"patient-{number}", image, ("a lesion",), split="train" if number < 60 else "test"))
    tiny["data"] |= {"path": str(tmp_path / "clinic")}
    tiny["privacy"] |= {"batch": 16, "steps": STEPS}

    def write(**more):
        (tmp_path / "tiny.toml").write_text(parse_config({**tiny, **more}).dump())
        return tmp_path / "tiny.toml", "--run", tmp_path / "run"

    return write


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Stand-ins for both libraries: every call with its arguments. When one begins, all is paid for and on the card."""
    made = []

    class Recorder:
        def __init__(self, *path):
            self.path, self.info = path, types.SimpleNamespace(run_id="id")

        def __getattr__(self, name):
            return Recorder(*self.path, name)

        def __call__(self, *arguments, **options):
            made.append((".".join(self.path), arguments, options))
            if self.path[-1] in ("init", "create_run"):
                board = "Weights & Biases" if self.path[-1] == "init" else "MLflow"
                assert Ledger.open(tmp_path / "run" / "ledger.jsonl").charged == STEPS
                assert f"Sent to {board}" in (tmp_path / "run" / "privacy_card.md").read_text()
            if self.path[-1] == "get_experiment_by_name":
                return None
            return Recorder(*self.path)

    for library in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, library, Recorder(library))
    return made


def metrics(folder):
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_only_what_the_card_covers_is_sent(config, calls, dpfed, tmp_path):
    words = config()
    code, _, error = dpfed("pretrain", *words, "--wandb", "--mlflow")
    assert code == 0, error
    lines = [line for line in metrics(tmp_path) if "evaluation" not in line]
    expected = [
        (line["step"], f"training/{name}", line[name])
        for line in lines
        for name in ("epsilon", "learning_rate", "noisy_gradient_norm")
    ]
    logged = [(options["step"], arguments[0]) for name, arguments, options in calls if name.endswith("init.log")]
    assert [(step, name, value) for step, own in logged for name, value in own.items()] == expected
    theirs = [(options["step"], *arguments[1:]) for name, arguments, options in calls if name.endswith("log_metric")]
    assert theirs == expected and {step for step, *_ in expected} == {1, 2}
    everything = str(calls)
    assert "evaluation" in str(metrics(tmp_path))  # there were figures that must not be sent
    for secret in ("evaluation", "R_at", "patient", "clinic", "lesion", str(tmp_path), socket.gethostname()):
        assert secret not in everything
    code, shown, error = dpfed("privacy", "verify", tmp_path / "run" / "privacy_card.md", tmp_path / "run")
    assert code == 0, shown + error


def test_a_run_without_a_guarantee_is_not_sent(config, calls, dpfed, tmp_path):
    code, _, error = dpfed("pretrain", *config(), "--set", "privacy.seed=1", "--wandb")
    assert code == 2 and "nothing of it is sent" in error and not [name for name, *_ in calls if "init" in name]
    assert "Sent to" not in (tmp_path / "run" / "privacy_card.md").read_text()


def test_a_missing_package_is_said_before_the_run_begins(config, dpfed, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    code, _, error = dpfed("pretrain", *config(), "--mlflow")
    assert code == 2 and error.splitlines()[-1] == "error: --mlflow needs the package mlflow: pip install 'dpfed[mlflow]'."
    assert not (tmp_path / "run").exists()


def test_figures_that_a_board_does_not_take_are_sent_by_the_next_command(config, calls, dpfed, monkeypatch, tmp_path):
    words, board = config(), sys.modules["wandb"]

    def offline(**_):
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Settings=dict, init=offline))
    code, _, error = dpfed("pretrain", *words, "--wandb")
    assert code == 2 and "no network" in error and f"`dpfed resume {tmp_path / 'run'} --wandb`" in error
    monkeypatch.setitem(sys.modules, "wandb", board)
    code, _, error = dpfed("resume", tmp_path / "run", "--wandb")
    assert code == 0 and [name for name, *_ in calls if name.endswith("init.log")], error
