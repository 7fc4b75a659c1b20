"""`dpfed watch` and `dpfed serve`, as an operator types them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from dpfed.privacy.ledger import Ledger, Release
from tests.live.conftest import finish
from tests.patience import exit_code

SITES = ("north", "south")


def test_a_run_in_the_terminal(dpfed, make, plan):
    run = make(done=3, sites=SITES)
    code, out, _ = dpfed("watch", run.path)
    assert code == 0 and "3 of 6 (50%)" in out and "of 8.00 planned" in out and re.search(r"south +3 +0", out)
    code, out, _ = dpfed("watch", run.path, "--json")
    (facts,) = json.loads(out)
    assert code == 0 and {one["name"]: one["value"] for one in facts["figures"]}["epsilon_spent"] == plan.epsilon(3)


def test_watching_ends_with_the_run(dpfed, make, monkeypatch):
    run = make(done=6)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        finish(run, {"epsilon": 8.0, "delta": 1e-3}, "# Privacy card of tiny\n\n**It is private.**\n")

    monkeypatch.setattr("dpfed.console.terminal.console._force_terminal", True)
    monkeypatch.setattr("dpfed.cli.live.time.sleep", sleep)
    assert dpfed("watch", run.path)[0] == 0 and len(looks) == 1


def test_watching_ends_if_the_run_is_deleted(dpfed, make, monkeypatch):
    run, looks = make(done=3), []

    def sleep(seconds):
        looks.append(seconds)
        shutil.rmtree(run.path)

    monkeypatch.setattr("dpfed.console.terminal.console._force_terminal", True)
    monkeypatch.setattr("dpfed.cli.live.time.sleep", sleep)
    code, out, err = dpfed("watch", run.path)
    assert code == 0 and "The run was deleted or moved" in out and "Traceback" not in err and len(looks) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("watch", "/nowhere"), "watch-folder-missing"),
        (("serve", "/nowhere"), "watch-folder-missing"),
        (("serve", ".", "--port", "70000"), "watch-port-range"),
        (("serve", ".", "--token-file", "/nowhere"), "watch-token-unreadable"),
        (("serve", ".", "--pictures", "/nowhere"), "/nowhere"),
    ],
)
def test_what_is_refused(dpfed, words, sentence):
    code, _, err = dpfed(*words)
    assert code == 2 and sentence in err and "Traceback" not in err


@pytest.mark.long
def test_the_page_until_ctrl_c(make, tmp_path):
    pytest.importorskip("uvicorn")
    words = ["serve", str(make(done=3).path), "--port", "0"]
    process = subprocess.Popen([sys.executable, "-m", "dpfed", *words], stdout=subprocess.PIPE, text=True, env=os.environ)
    address = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
    place, _, token = address.partition("?token=")
    request = urllib.request.Request(f"{place}metrics", headers={"Authorization": f"Bearer {token}"})
    assert b'dpfed_steps_done{run="one"} 3.0' in urllib.request.urlopen(request).read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(place)
    process.send_signal(signal.SIGINT)
    assert exit_code(process, 20) == 0 and token not in process.stdout.read()


@pytest.mark.parametrize("words", [("privacy", "ledger"), ("report",), ("resume",)])
def test_a_site_given_as_a_run_is_named_and_the_advice_works(dpfed, tmp_path, plan, words):
    kit = tmp_path / "north"
    (kit / "site").mkdir(parents=True)
    (kit / "site" / "site.toml").write_text('name = "north"\nbudget = 8.0\n')
    Ledger.create(kit / "site" / "ledger.jsonl", plan).charge(Release(0, "ab"))
    for place in (kit, kit / "site"):
        code, _, error = dpfed(*words, place)
        advice = f"dpfed watch {place}"
        assert code == 2 and "is a site of a federation" in error and f"`{advice}`" in error, error
        code, out, _ = dpfed(*advice.split()[1:], "--once")
        assert code == 0 and "1 of 6" in out


def test_a_folder_of_runs_in_the_place_of_one_names_one(dpfed, make):
    run = make("one")
    code, _, error = dpfed("privacy", "ledger", run.path.parent)
    assert code == 2 and f"such as {run.path}." in error
    assert dpfed("privacy", "ledger", run.path)[0] == 0
