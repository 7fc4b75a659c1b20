"""To add a loss is to add a file: nothing else of the package is touched, and keys, refusals and training follow from it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

import dpfed

SPECTRAL = '''
"""Spectral contrast inside one group (HaoChen et al. 2021, "Provable Guarantees for Self-Supervised Deep Learning")."""

from pydantic import Field

from dpfed.objectives.objective import Objective
from dpfed.schema.section import Section


class Options(Section):
    """Weights."""

    push: float = Field(1.0, gt=0, le=50, description="weight of the squared inner products between records")


def group_loss(embeddings, present, temperature=None, bias=None, *, options):
    """Scalar: the sum over the records that are present."""
    import torch

    images = embeddings["image"]
    first, second = images[:, 0], embeddings["text"][:, 0] if "text" in embeddings else images[:, 1]
    products = torch.where(present[:, None] & present[None, :], first @ second.T, 0.0)
    own = products.diagonal()
    others = products.square().sum() - own.square().sum()
    return -2 * own.sum() + options.push * others / (present.sum() - 1).clamp(min=1)


OBJECTIVE = Objective(title="squared inner products", loss=group_loss, options=Options, unit_length=False)
'''
WORK = """
import json, sys
from dpfed.config import load_config
from dpfed.config.keys import matching
from dpfed.errors import UserError

folder = sys.argv[1]
[key] = matching(["objective.push"])
said = {"key": [key.allowed, key.default, key.meaning, list(key.depends_on)], "torch": "torch" in sys.modules}
wrong = {"idle": ["objective.name=infonce"], "other": ["objective.temperature=0.3"], "range": ["objective.push=50.5"]}
for name, changes in wrong.items():
    try:
        load_config(f"{folder}/spectral.toml", changes)
    except UserError as error:
        said[name] = str(error)

from safetensors.torch import load_file
from dpfed.runs.pretraining import pretrain
for push in ("9.0", ""):
    run = pretrain(load_config(f"{folder}/spectral.toml", [f"objective.push={push}"]), f"{folder}/runs/{push or 'default'}")
    weights = load_file(run.model / "model.safetensors").values()
    said[push] = [run.finished, run.config().objective.push, sum(float(value.double().norm()) for value in weights)]
print(json.dumps(said))
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of dpfed with one file more."""
    shutil.copytree(Path(dpfed.__file__).parent, tmp_path / "dpfed")
    (tmp_path / "dpfed" / "objectives" / "spectral.py").write_text(SPECTRAL, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_loss_of_ones_own_is_one_file(tiny, package):
    tiny |= {"objective": {"name": "spectral", "push": 2.0}, "evaluation": {"split": "none"}}
    tiny |= {"privacy": {"noise_multiplier": 0.8, "accountant": "rdp", "batch": 40, "steps": 2, "seed": 1}}
    (package / "spectral.toml").write_text(tomli_w.dumps(tiny), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORK, str(package)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    meaning = "spectral: weight of the squared inner products between records"
    assert said["key"] == ["number, above 0, 50 or less", 1.0, meaning, ["objective.name"]] and not said["torch"]
    idle = "'objective.push' has no effect with objective.name = 'infonce'"
    assert f"{idle} (the default): set objective.name = 'spectral', or leave 'objective.push' out." in said["idle"]
    assert "'objective.temperature' has no effect with objective.name = 'spectral'" in said["other"]
    assert "'objective.push': expected at most 50.0; got 50.5." in said["range"]
    assert said["9.0"][:2] == [True, 9.0] and said[""][:2] == [True, 1.0]
    assert said["9.0"][2] != said[""][2], "the option reaches the loss"
