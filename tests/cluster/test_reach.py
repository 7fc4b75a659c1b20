"""A Ray cluster that does not come up is a sentence within seconds; Ray itself is not asked, and not imported."""

import io
import socket
import time

import pytest

from dpfed.cluster.reach import require_cluster
from dpfed.errors import UserError
from dpfed.progress import Silent


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]  # bound, and not listening: a connection is refused


@pytest.fixture(autouse=True)
def nothing_started_here(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_dead_address_is_refused_after_the_wait_which_is_said(monkeypatch, port):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    watcher, started = Notes(), time.monotonic()
    said = rf"reaching the Ray cluster at '127.0.0.1:{port}' \(RAY_ADDRESS\) failed for \d seconds.*ray start"
    with pytest.raises(UserError, match=said):
        require_cluster(watcher, wait=1)
    assert time.monotonic() - started < 6 and "trying again for up to 1 seconds" in watcher.notes[0]


def test_a_named_cluster_has_as_long_as_any_that_is_starting_and_one_of_before_a_few_seconds(monkeypatch, tmp_path, port):
    """A head that is named may be starting on a busy machine; `ray start` writes its file when the head is up."""
    monkeypatch.setattr("dpfed.cluster.reach.WAIT", 0.6)
    monkeypatch.setattr("dpfed.cluster.reach._LEFT_BEHIND", 0.1)
    monkeypatch.setattr("dpfed.cluster.reach._TOLD_AGAIN", 0.2)
    monkeypatch.setattr("dpfed.cluster.reach._AGAIN", 0.05)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
    started = time.monotonic()
    with pytest.raises(UserError, match="ray_current_cluster"):
        require_cluster(Silent())
    assert time.monotonic() - started < 0.5
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    watcher = Notes()
    with pytest.raises(UserError, match="RAY_ADDRESS"):
        require_cluster(watcher)
    assert time.monotonic() - started > 0.6 and len(watcher.notes) >= 2


def test_a_cluster_that_comes_up_in_time_is_waited_for(monkeypatch, port):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")

    class Late(Notes):
        def note(self, text):
            super().note(text)
            monkeypatch.setattr("dpfed.cluster.reach.socket.create_connection", lambda *_, **__: io.BytesIO())

    watcher = Late()
    require_cluster(watcher, wait=5)
    assert len(watcher.notes) == 1


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:0", "host:99999", "host:12345678901", "host:port"])
def test_what_is_no_address_is_refused_at_once(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match="expected host and port"):
        require_cluster(Silent())


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_nothing_is_asked_where_no_cluster_is_named(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    require_cluster(Silent(), wait=0)
