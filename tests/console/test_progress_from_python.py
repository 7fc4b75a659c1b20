"""What a program or a notebook that calls `dpfed.pretrain` sees of the run."""

import io

import pytest
from rich.console import Console

import dpfed
from dpfed.callbacks import Callback
from dpfed.console import library, logs, terminal
from dpfed.console.library import shown
from dpfed.progress import Progress, Silent


@pytest.fixture(autouse=True)
def for_people():
    """Lines of this process are for people, whatever another test left."""
    logs.end()


@pytest.fixture
def screen(monkeypatch):
    """A terminal."""
    out = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "console", out)
    monkeypatch.setattr(library, "console", out)
    return out.file


@pytest.mark.long
def test_a_terminal_has_bars_unless_they_are_not_wanted(tiny_config, screen, tmp_path):
    dpfed.pretrain(tiny_config, tmp_path / "silent", progress=False)
    assert screen.getvalue() == ""
    dpfed.pretrain(tiny_config, tmp_path / "shown")
    assert "private steps" in screen.getvalue() and "6/6" in screen.getvalue()


@pytest.mark.long
def test_without_a_terminal_nothing_is_shown_unless_asked_for(tiny_config, capsys, tmp_path):
    dpfed.pretrain(tiny_config, tmp_path / "silent")
    dpfed.resume(tmp_path / "silent")
    assert capsys.readouterr() == ("", "")
    dpfed.pretrain(tiny_config, tmp_path / "shown", progress=True)
    assert "private steps: 6" in capsys.readouterr().out


def test_a_progress_of_ones_own_is_taken_as_it_is():
    progress = Progress()
    with shown(progress) as seen:
        assert seen is progress
    with shown(False) as seen:
        assert type(seen) is Silent


@pytest.mark.parametrize("wrong", ["bars", Callback()])
def test_what_is_no_progress_is_refused(tiny_config, tmp_path, wrong):
    with pytest.raises(dpfed.UserError, match="progress-type"):
        dpfed.pretrain(tiny_config, tmp_path / "run", progress=wrong)
    assert not (tmp_path / "run").exists()


def test_a_notebook_without_widgets_has_lines(monkeypatch):
    out = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not terminal.draws(out)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    assert terminal.draws(out)
