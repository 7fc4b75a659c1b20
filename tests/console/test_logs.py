"""Logs for machines: every line is JSON, files rotate and are their owner's, and none lies in a run's folder."""

import json
import logging

import pytest

from dpfed.console import logs
from dpfed.console.terminal import say, watching
from dpfed.errors import UserError
from dpfed.evaluation.measured import Evaluation


@pytest.fixture(autouse=True)
def text_afterwards(monkeypatch):
    monkeypatch.delenv(logs.FORMAT, raising=False)
    monkeypatch.delenv(logs.FILE, raising=False)
    yield
    logs.end()


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_is_json_and_stdout_stays_free(capsys):
    logs.set_up("json")
    say('a "name"\nwith more')
    with watching() as watcher:
        advance = watcher.stage("steps", 2)
        advance(1)
        advance(2)
        watcher.note("something")
        watcher.evaluated([Evaluation("image_to_text_R@10", 0.75, "trained", "test", "cosine", 4)])
        watcher.figures(4, {"training/epsilon": 1.5})
    out, err = capsys.readouterr()
    made = lines(err)
    assert not out and [line["event"] for line in made] == ["say", "stage", "progress", "note", "evaluated", "figures"]
    assert all(line["time"].endswith("+00:00") and line["level"] == "info" for line in made)
    assert made[2]["done"] == 2 and made[-1]["values"] == {"training/epsilon": 1.5}


def test_an_error_is_a_line_and_exit_code_2(dpfed):
    code, out, err = dpfed("--log-format", "json", "watch", "/nowhere")
    assert code == 2 and not out and lines(err)[-1]["level"] == "error" and "no folder" in lines(err)[-1]["text"]


def test_text_is_as_it_was(dpfed):
    code, _, err = dpfed("watch", "/nowhere")
    assert code == 2 and err.splitlines()[-1].startswith("error: there is no folder /nowhere")


def test_files_rotate_and_are_their_owners(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_LARGEST", 2000)
    file = tmp_path / "dpfed.log"
    logs.set_up("json", file)
    for number in range(200):
        logs.write("note", number=number)
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 6 and all(path.stat().st_size <= 2000 and path.stat().st_mode & 0o777 == 0o600 for path in kept)
    assert lines(file.read_text())[-1]["number"] == 199


def test_the_environment_speaks_for_processes_that_others_start(tmp_path, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, "json")
    monkeypatch.setenv(logs.FILE, str(tmp_path / "a.log"))
    logs.set_up()
    logs.write("note", text="x")
    assert lines((tmp_path / "a.log").read_text())[0]["text"] == "x"


@pytest.mark.parametrize("where", ["run", "run/deep"])
def test_no_log_in_a_runs_folder(tmp_path, where):
    (tmp_path / where).mkdir(parents=True)
    for name in (".lock", "config.toml"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(UserError, match="times"):
        logs.set_up("json", tmp_path / where / "a.log")


def test_what_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected 'text' or 'json'"):
        logs.set_up("yaml")
    with pytest.raises(UserError, match="--log-format json"):
        logs.set_up("text", tmp_path / "a.log")
    with pytest.raises(UserError, match="cannot write"):
        logs.set_up("json", tmp_path / "none" / "a.log")
    (tmp_path / "link").symlink_to(tmp_path / "a.log")
    with pytest.raises(UserError, match="cannot write"):
        logs.set_up("json", tmp_path / "link")


def test_a_full_disk_ends_no_run(tmp_path, capsys):
    logs.set_up("json", tmp_path / "a.log")
    logging.getLogger("dpfed.log").handlers[0].stream.close()
    logs.write("note", text="x")
    assert "Traceback" not in capsys.readouterr().err
