"""Logs for machines: every line is JSON."""

import json
import logging
import warnings

import pytest

from dpfed.callbacks import StepSummary
from dpfed.console import logs
from dpfed.console.terminal import say, watching
from dpfed.errors import UserError
from dpfed.evaluation.measured import Evaluation


@pytest.fixture(autouse=True)
def text_afterwards(monkeypatch):
    monkeypatch.delenv(logs.FORMAT, raising=False)
    yield
    logs.end()


def refuse(constant):
    raise ValueError(f"{constant} is not a JSON")


def lines(text):
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_every_line_is_json_and_stdout_stays_free(capsys):
    logs.set_up("json")
    say('a "name"\nwith more')
    with watching() as progress:
        advance = progress.stage("steps", 2)
        advance(1)
        advance(2)
        progress.note("something")
        progress.on_evaluation([Evaluation("image_to_text_R@10", 0.75, "trained", "test", "cosine", 4)])
        progress.on_step(StepSummary(3, 5, 0.1, None, spent=lambda done: 1.5))
    out, err = capsys.readouterr()
    made = lines(err)
    assert not out and [line["event"] for line in made] == ["say", "stage", "progress", "note", "evaluated", "figures"]
    assert all(line["time"].endswith("+00:00") and line["level"] == "info" for line in made)
    assert made[2]["done"] == 2 and made[-1]["values"] == {"training/epsilon": 1.5, "training/learning_rate": 0.1}


def test_an_error_is_a_line_and_exit_code_2(dpfed):
    code, out, err = dpfed("--log-format", "json", "watch", "/nowhere")
    assert code == 2 and not out and lines(err)[-1]["level"] == "error" and "watch-folder-missing" in lines(err)[-1]["text"]


def test_text_is_as_it_was(dpfed):
    code, _, err = dpfed("watch", "/nowhere")
    assert code == 2 and err.splitlines()[-1].startswith("error: no folder /nowhere")


def test_the_environment_speaks_for_processes_that_others_start(capsys, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, "json")
    logs.set_up()
    logs.write("note", text="x")
    assert lines(capsys.readouterr().err)[0]["text"] == "x"


def test_what_is_refused():
    with pytest.raises(UserError, match="log-format-unknown"):
        logs.set_up("yaml")


def test_warnings_and_numbers_that_are_none_are_json_too(capsys):
    logs.set_up("json")
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    logging.getLogger("somebody.else").error("broken\nin two lines")
    logs.write("figures", values={"loss": float("nan"), "all": [float("inf"), 1.5]})
    logs.end()
    warned, broken, figures = lines(capsys.readouterr().err)
    assert (warned["level"], warned["event"]) == ("warning", "warning") and "old" in warned["text"]
    assert broken["level"] == "error" and broken["logger"] == "somebody.else" and broken["text"] == "broken\nin two lines"
    assert figures["values"] == {"loss": "nan", "all": ["inf", 1.5]}
    logging.getLogger("somebody.else").error("for people again")
    assert "{" not in capsys.readouterr().err


def test_a_wrong_option_is_a_line_and_exit_code_2(dpfed):
    code, out, err = dpfed("--log-format", "json", "watch", "--no-such-option")
    assert code == 2 and not out and "--no-such-option" in lines(err)[-1]["text"]
    code, _, err = dpfed("watch", "--no-such-option")
    assert code == 2 and "Usage" in err
    code, out, err = dpfed("--log-format", "json", "no-such-command")  # no command begins that would choose the format
    assert code == 2 and not out and "no-such-command" in lines(err)[-1]["text"]


def test_a_mistake_of_ours_is_a_line_with_its_traceback(dpfed, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("dpfed.live.scan.Scan.__init__", broken)
    code, out, err = dpfed("--log-format", "json", "watch", ".")
    assert code == 1 and not out and "ZeroDivisionError: of ours" in lines(err)[-1]["text"]
