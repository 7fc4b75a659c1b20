"""What the environment of this machine must not change: loopback stays on this machine, and an unknown user gets a sentence."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

from dpfed.budgets.registry import registry
from dpfed.errors import UserError
from dpfed.federation.demo.processes import Processes
from dpfed.paths import is_url, local_path, proxy_hint, without_proxy
from tests.patience import at_most, run_to_end
from tests.sparing import sparing

NOWHERE = "http://me:secret@127.0.0.1:9"
HOSTS = "localhost,127.0.0.1,::1"


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {}),
        ({"no_proxy": "a"}, {}),
        ({"HTTP_PROXY": NOWHERE}, {"no_proxy": HOSTS, "NO_PROXY": HOSTS}),
        ({"https_proxy": NOWHERE, "NO_PROXY": "a, ::1"}, dict.fromkeys(("no_proxy", "NO_PROXY"), "a,::1,localhost,127.0.0.1")),
        (
            {"grpc_proxy": NOWHERE, "no_grpc_proxy": "b", "no_proxy": "*"},
            {"no_proxy": "*", "NO_PROXY": "*", "no_grpc_proxy": f"b,{HOSTS}"},
        ),
    ],
)
def test_loopback_never_goes_through_a_proxy(given: dict[str, str], added: dict[str, str]) -> None:
    assert without_proxy(given) == added


CONNECT = """
import grpc, sys
from concurrent import futures
server = grpc.server(futures.ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
grpc.channel_ready_future(grpc.insecure_channel(f"127.0.0.1:{port}")).result(timeout=float(sys.argv[1]))
"""


def test_a_local_federation_connects_where_a_proxy_is_set(tmp_path, monkeypatch) -> None:
    pytest.importorskip("grpc")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    run_to_end(
        [sys.executable, "-c", CONNECT, str(at_most(20))], env=Processes(tmp_path).environment(), check=True, timeout=300
    )
    assert "http_proxy, https_proxy" in proxy_hint() and "secret" not in proxy_hint()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "DPFED_BUDGETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(UserError, match="user 54321 has no home directory.*DPFED_BUDGETS"):
        registry()


@pytest.mark.parametrize("home", ["", "relative", None])
@pytest.mark.parametrize("state", ["", "relative", None])
def test_budgets_do_not_depend_on_where_a_command_starts(monkeypatch, tmp_path, home, state) -> None:
    """With an empty HOME, ``~`` would be the root of the file system, and a budget that was set before would be overlooked."""
    expected = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".local/state/dpfed/budgets")
    for name, value in {"HOME": home, "XDG_STATE_HOME": state, "DPFED_BUDGETS": None}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert str(registry()) == expected
    monkeypatch.setenv("XDG_STATE_HOME", "~/state")
    assert str(registry()) == os.path.join(pwd.getpwuid(os.getuid()).pw_dir, "state/dpfed/budgets")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry() == tmp_path / "state/dpfed/budgets"
    monkeypatch.setenv("DPFED_BUDGETS", "shelf")
    with pytest.raises(UserError, match="registry-relative"):
        registry()


def test_a_deleted_working_folder_is_named(monkeypatch, tmp_path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for given in ("store", "."):
        with pytest.raises(UserError, match="current folder, which was deleted.*path-folder-gone"):
            local_path(given, "the new store")
    assert local_path(tmp_path, "the new store") == tmp_path


@pytest.mark.parametrize("path", ["s3://bucket/store", "file:///a", "memory://x", "simplecache::s3://b/x", "gs://b"])
def test_urls(path: str) -> None:
    assert is_url(path)


@pytest.mark.parametrize("path", ["store", "/a/b", "./s3:/x", "~/x", "a b://c", "C:/x", "data/x://y"])
def test_paths(path: str) -> None:
    assert not is_url(path)


@pytest.mark.long
@pytest.mark.parametrize("words", sparing(["watch", "resume", "data inspect"], "watch"))
def test_no_valid_name_is_called_invalid_and_the_advice_works(tmp_path, words):
    place = tmp_path / "für alle"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "dpfed", *words.split(), str(place)]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 2 and b"[path-encoding]" in done.stderr and b"set PYTHONUTF8=1" in done.stderr, done.stderr
    done = subprocess.run(command, env=environment | {"PYTHONUTF8": "1"}, capture_output=True)
    assert done.returncode == 2 and "für alle" in done.stderr.decode() and b"path-" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("words", [["watch", "."], ["data", "inspect", "store"], ["pretrain", "quickstart"]])
def test_a_working_folder_that_is_gone_is_named(tmp_path, words):
    (tmp_path / "gone").mkdir()
    command = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", sys.executable, "-m", "dpfed", *words]
    done = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True)
    assert done.returncode == 2 and "[path-folder-gone]" in done.stderr, done.stderr
