"""The Slurm script is sound bash, and starts processes that make one run together: `srun` and `scontrol` are stand-ins."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger
from tests.patience import run_to_end

SCRIPT = Path(__file__).resolve().parents[2] / "cluster" / "deploy" / "slurm.sbatch"

# Starts every task as a process of this machine, and ends all when one fails, as --kill-on-bad-exit asks.
SRUN = r"""#!/bin/bash
[[ $1 == --kill-on-bad-exit=1 ]] || exit 64
shift
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & tasks+=($!)
done
for _ in "${tasks[@]}"; do wait -n || { code=$?; kill "${tasks[@]}"; exit "$code"; }; done
"""


@pytest.fixture
def slurm(tmp_path):
    """Runs the script as Slurm does, on one machine with two tasks."""
    programs = tmp_path / "bin"
    programs.mkdir()
    scontrol = '#!/bin/bash\n[[ "$*" == "show hostnames here[1-1]" ]] && echo 127.0.0.1\n'
    dpfed = f'#!/bin/bash\nexec {sys.executable} -m dpfed "$@"\n'
    for name, text in {"srun": SRUN, "scontrol": scontrol, "dpfed": dpfed}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "here[1-1]", "SLURM_NTASKS": "2", "GLOO_SOCKET_IFNAME": "lo"}
    environment = os.environ | job | {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(*words):
        command = ["bash", SCRIPT, *map(str, words)]
        return run_to_end(command, env=environment, capture_output=True, text=True, timeout=120)

    return run


@pytest.mark.slow
def test_two_tasks_make_one_run(slurm, tiny, tmp_path):
    tiny |= {"evaluation": {"split": "none", "tasks": [], "every": 0}}
    (tmp_path / "tiny.toml").write_text(parse_config(tiny).dump())
    done = slurm(tmp_path / "tiny.toml", "--set", "privacy.steps=2", "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    ledger = Ledger.open(tmp_path / "run" / "ledger.jsonl")
    assert ledger.charged == 2 and json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["guarantee"]
    assert any('"owners": 2' in line for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines())


def test_a_task_that_fails_fails_the_job(slurm, tmp_path):
    done = slurm(tmp_path / "none.toml", "--run", tmp_path / "run")
    assert done.returncode != 0 and not (tmp_path / "run").exists()


def test_the_script_passes_the_linter():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", SCRIPT.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == options["gpus-per-node"] and "requeue" in options and "--resume" in SCRIPT.read_text()
    if (linter := shutil.which("shellcheck")) is None:
        pytest.skip("shellcheck is not installed")
    checked = subprocess.run([linter, SCRIPT], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
