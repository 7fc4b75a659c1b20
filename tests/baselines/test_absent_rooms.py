"""The core needs neither the baselines nor the papers' experiments: a copy without both folders passes its own tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ["tests/training/test_worker_draws.py", "tests/privacy/test_ledger.py", "tests/bounding/test_foreach.py"]
REFUSED = {
    "bounding.method=sample": "expected one of batch, group, moments, none, public; got 'sample'",
    "model.normalisation=batch": "BatchNorm is in dpfed.baselines, which is not installed",
}


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    folder = tmp_path_factory.mktemp("core")
    left_out = shutil.ignore_patterns("__pycache__", "baselines", "reproduce")
    for name in ("dpfed", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "configs").symlink_to(ROOT / "configs")
    # An editable installation would find the rooms where they are.
    only_here = "import sys\nsys.meta_path = [one for one in sys.meta_path if 'editable' not in repr(one).lower()]\n"
    (folder / "sitecustomize.py").write_text(only_here)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_the_cores_tests_pass(core):
    done = core("pytest", "-q", "-p", "no:cacheprovider", *CORE)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
def test_a_group_run_trains_and_the_papers_command_is_gone(core):
    small = [f"--set={key}" for key in ("data.records=300", "data.size=16", "privacy.steps=2", "evaluation.records=40")]
    done = core("dpfed", "pretrain", "quickstart", "--run", "runs/one", "--set=privacy.batch=40", *small)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "reproduce" not in core("dpfed", "--help").stdout and core("dpfed", "config", "keys").returncode == 0


@pytest.mark.parametrize("setting", REFUSED)
def test_a_configuration_that_names_a_baseline_is_refused(core, setting):
    done = core("dpfed", "pretrain", "cifar10-cpu", "--run", "runs/refused", "--set", setting)
    assert done.returncode == 2 and REFUSED[setting] in " ".join(done.stderr.split()), done.stderr
