"""Mistakes in the use of a cluster: one sentence, exit code 2, nothing written."""

import os

import pytest

from dpfed.config import load_config
from dpfed.runs.pretraining import pretrain as run_here
from tests.cluster.processes import Processes, as_torchrun, command, free_port, pretrain
from tests.cluster.processes import dpfed as call

# What is wrong, whether torchrun started the command, its words with the configuration C, a new run N, the finished run F, and
# what the sentence says.
REFUSED = {
    "name in use": (True, "pretrain C --run F --cluster torchrun", "run-in-use"),
    "another configuration": (
        True,
        "pretrain C --run F --cluster torchrun --resume --set optimizer.learning_rate=0.5",
        "optimizer.learning_rate",
    ),
    "no torchrun": (False, "pretrain C --run N --cluster torchrun", "-- dpfed pretrain CONFIG --cluster torchrun`"),
    "no torchrun to resume": (False, "resume F --cluster torchrun", "-- dpfed resume RUN --cluster torchrun`"),
    "workers alone": (False, "pretrain C --run N --workers 2", "option-ray-only"),
    "workers of torchrun": (True, "pretrain C --run N --cluster torchrun --workers 2", "option-ray-only"),
    "range upside down": (False, "pretrain C --run N --cluster ray --workers 3-2", "1 <= first <= last. [ray-resources]"),
    "no number": (False, "pretrain C --run N --cluster ray --workers x", "option-workers-wrong"),
    "no run": (False, "resume N --cluster ray", "run-no-config"),
    "no run for torchrun": (True, "resume N --cluster torchrun", "run-no-config"),
}


def files(*folders):
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def refused(processes, sentence):
    # What the command was doing, and last of all the sentence.
    assert processes.output(0).splitlines()[-1].startswith("error: ") and processes.output(0).count("error: ") == 1, (
        processes.text
    )
    assert sentence in processes.output(0)
    assert "Traceback" not in processes.text


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
    """A finished run of that configuration; how many processes carried it out makes no difference to what is refused."""
    return run_here(load_config(source), tmp_path_factory.mktemp("finished") / "run")


@pytest.mark.parametrize("what", REFUSED)
def test_mistakes_are_refused_before_anything_is_written(source, finished, tmp_path, monkeypatch, dpfed, what):
    of_torchrun, line, sentence = REFUSED[what]
    for name, value in as_torchrun(0, 1, free_port()).items() if of_torchrun else ():
        monkeypatch.setenv(name, value)
    places, before = {"C": source, "N": tmp_path / "work" / "new", "F": finished.path}, files(finished.path)
    code, out, error = dpfed(*(places.get(word, word) for word in line.split()))
    assert code == 2 and "Traceback" not in out + error
    said = [line for line in error.splitlines() if line.startswith("error: ")]
    assert said == error.splitlines()[-1:] and sentence in said[0]
    assert not (tmp_path / "work").exists() and files(finished.path) == before


def test_more_workers_than_groups_are_refused_at_once(source, tmp_path):
    few = pretrain(source, tmp_path / "work" / "run", "--set", "privacy.batch=8")
    with Processes(3, tmp_path / "out", command, *few) as processes:
        assert processes.wait() == [2, 2, 2], processes.text  # each knows by itself, before any of them waits for another
        refused(processes, "3 workers would share 2 groups")
    assert not (tmp_path / "work").exists()


def restarted(rank, *arguments):
    """torchrun starts all processes again after any of them failed, also where rank 0 refused its task."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    call(*arguments)


def test_torchruns_restart_resumes_no_run_unasked(finished, source, tmp_path):
    before = files(finished.path)
    with Processes(1, tmp_path / "out", restarted, *pretrain(source, finished.path)) as processes:
        assert processes.wait() == [2], processes.text
        refused(processes, "run-in-use")
    assert files(finished.path) == before


def test_the_same_configuration_goes_on_with_its_own_run(finished, source, tmp_path):
    with Processes(2, tmp_path / "out", command, *pretrain(source, finished.path, "--resume")) as processes:
        assert processes.wait() == [0, 0], processes.text
