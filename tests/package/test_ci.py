"""What CI runs: a browser for the page's tests where one may be installed, and everything else in any case."""

import os
import shutil
from pathlib import Path

import pytest

from tests.patience import run_to_end

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"


@pytest.fixture
def ci(tmp_path):
    """Runs a copy of the script in sight of these programs alone: a stand-in writes down how it was called."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    programs.mkdir()
    for name in ("bash", "dirname", "timeout", "sleep"):
        (programs / name).symlink_to(shutil.which(name))

    def run(**stand_ins):
        for name, body in {"id": "echo 0", "make": "", "apt-get": "", **stand_ins}.items():
            if body is not None:
                (programs / name).write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {log}\n{body}\n')
                (programs / name).chmod(0o755)
        log.write_text("")
        done = run_to_end(
            [tmp_path / ".ci" / "run"], capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": str(programs)}
        )
        return done, log.read_text().splitlines()

    return run


def test_the_browser_is_there_before_the_tests_begin(ci):
    done, calls = ci(**{"apt-get": 'case "$*" in *install*) sleep 0.5; echo ready >> "${0%/*}/../log"; esac'})
    assert done.returncode == 0 and not done.stdout + done.stderr
    assert calls.index("ready") < calls.index("make test") and {"make lint", "make docs"} < set(calls)
    assert any(call.startswith("apt-get") and call.endswith("install -y --no-install-recommends chromium") for call in calls)


@pytest.mark.parametrize("machine", [{"id": "echo 1000"}, {"apt-get": None}, {"chromium": ""}])
def test_nothing_is_installed_where_it_may_not_or_need_not_be(ci, machine):
    done, calls = ci(**machine)
    assert done.returncode == 0 and not any(call.startswith("apt-get") for call in calls)
    assert calls[-4:] == ["make test", "make test-long", "make test-ray", "make test-docs"]
