"""Mistakes in the use of a cluster: one sentence, exit code 2, nothing written."""

import os

import pytest

from tests.cluster.processes import Processes, command, dpfed, pretrain


def without_torchrun(rank, *arguments):
    del os.environ["RANK"]
    dpfed(*arguments)


# What is wrong, the command line with the configuration C, a new run N, the finished run F, and what the sentence says.
REFUSED = {
    "name in use": (command, "pretrain C --run F --cluster torchrun", "is in use"),
    "another configuration": (
        command,
        "pretrain C --run F --cluster torchrun --resume --set optimizer.learning_rate=0.5",
        "optimizer.learning_rate",
    ),
    "no torchrun": (without_torchrun, "pretrain C --run N --cluster torchrun", "this process was not started by torchrun"),
    "workers alone": (without_torchrun, "pretrain C --run N --workers 2", "--workers 2 is for --cluster ray"),
    "workers of torchrun": (command, "pretrain C --run N --cluster torchrun --workers 2", "--workers 2 is for --cluster ray"),
    "range upside down": (without_torchrun, "pretrain C --run N --cluster ray --workers 3-2", "--workers 3-2 is not a range"),
    "no number": (without_torchrun, "pretrain C --run N --cluster ray --workers x", "--workers x: expected a number"),
    "no run": (without_torchrun, "resume N --cluster ray", "is not a run"),
    "no run for torchrun": (command, "resume N --cluster torchrun", "is not a run"),
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


@pytest.mark.parametrize("what", REFUSED)
def test_mistakes_are_refused_in_one_sentence_before_anything_is_written(source, undisturbed, tmp_path, what):
    task, line, sentence = REFUSED[what]
    places, before = {"C": source, "N": tmp_path / "work" / "new", "F": undisturbed.path}, files(undisturbed.path)
    with Processes(1, tmp_path / "out", task, *(places.get(word, word) for word in line.split())) as processes:
        assert processes.wait() == [2], processes.text
        refused(processes, sentence)
    assert not (tmp_path / "work").exists() and files(undisturbed.path) == before


def test_more_workers_than_groups_are_refused_before_anything_is_written(source, tmp_path):
    few = pretrain(source, tmp_path / "work" / "run", "--set", "privacy.batch=8")
    with Processes(3, tmp_path / "out", command, *few) as processes:
        assert processes.wait() == [2, 2, 2], processes.text  # each knows by itself, before any of them waits for another
        refused(processes, "3 workers would share 2 groups")
    assert not (tmp_path / "work").exists()


def restarted(rank, *arguments):
    """torchrun starts all processes again after any of them failed, also where rank 0 refused its task."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    dpfed(*arguments)


def test_torchruns_restart_does_not_go_on_with_a_run_that_nobody_asked_for(undisturbed, source, tmp_path):
    before = files(undisturbed.path)
    with Processes(1, tmp_path / "out", restarted, *pretrain(source, undisturbed.path)) as processes:
        assert processes.wait() == [2], processes.text
        refused(processes, "is in use")
    assert files(undisturbed.path) == before


def test_the_same_configuration_goes_on_with_its_own_run(undisturbed, source, tmp_path):
    with Processes(2, tmp_path / "out", command, *pretrain(source, undisturbed.path, "--resume")) as processes:
        codes = processes.wait()
        assert codes == [0, 0], processes.text
