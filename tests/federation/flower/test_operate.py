"""The operator's program: what a service manager starts again, and what it leaves to the operator."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("flwr")

from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState  # noqa: E402

from dpfed.cli import main  # noqa: E402
from dpfed.federation.flower import operator as operate  # noqa: E402
from dpfed.federation.flower.command import FlowerCommand  # noqa: E402
from dpfed.federation.flower.operator import Operator  # noqa: E402
from dpfed.federation.provisioning.project import Project  # noqa: E402
from dpfed.federation.provisioning.provision import provision  # noqa: E402
from tests.federation.provisioning.office import Office  # noqa: E402
from tests.patience import until  # noqa: E402

LOST = '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}'


@pytest.fixture
def chest(shapes, tmp_path, monkeypatch):
    """A coordinator's folder with terms, and a SuperLink that is there."""
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "shelf"))
    Office(tmp_path, shapes.path).joined()
    monkeypatch.setattr(Operator, "wait_for_link", lambda self: None)
    return tmp_path / "chest"


def ended(chest, capsys):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr("sys.argv", ["dpfed", "federation", "run", str(chest)])
        main()
    return end.value.code, capsys.readouterr()


def test_a_superlink_that_is_lost_is_a_sentence_and_tried_again(chest, monkeypatch, capsys):
    # Flower's command says so in JSON, and ends with 0.
    monkeypatch.setattr(FlowerCommand, "text", lambda self, *words: LOST)
    code, said = ended(chest, capsys)
    assert code == 1 and said.err.count("\n") == 1  # units do not start again what ends with 2
    assert said.err.endswith("supernode list federation says: Connection to the SuperLink is unavailable. [flower-error]\n")


def test_keys_are_looked_after_when_the_superlink_is_back(chest, monkeypatch, capsys):
    monkeypatch.setattr(operate, "_LOOK", 0.01)
    there, stop = [False], threading.Event()

    def flwr(self, *words):
        if not there[0]:
            there[0] = True
            raise operate.Unavailable("flwr says: gone.")
        if words[1] == "list":
            return '{"success": true, "nodes": []}'
        done.append(words[2])
        if len(done) == 2:
            stop.set()
        return '{"success": true, "node-id": 7}'

    done = []
    monkeypatch.setattr(FlowerCommand, "text", flwr)
    Operator(chest).watch(stop)
    said = capsys.readouterr().out
    assert "dpfed tries again. flwr says: gone." in said and "the SuperNode north is registered, as 7" in said


@pytest.mark.parametrize(
    ("started", "code", "told"),
    [
        ("finished:completed", 0, ""),
        ("finished:failed", 1, "the run stopped before its end (finished:failed): the same command resumes it"),
        (None, 1, "`flwr run` ended, but the SuperLink lists no new run"),
    ],
)
def test_what_came_of_a_run_is_said(chest, monkeypatch, capsys, started, code, told):
    """An earlier run that completed does not count for one that stopped, or was not started."""
    runs = [{"run-id": "1", "status": "finished:completed", "pending-at": "2026-01-02"}]

    def show(self, *words):
        if started:
            runs.append({"run-id": "2", "status": started, "pending-at": "2026-01-03"})

    monkeypatch.setattr(Operator, "register", lambda self: None)
    monkeypatch.setattr(Operator, "watch", lambda self, stop: None)
    monkeypatch.setattr(FlowerCommand, "text", lambda self, *words: json.dumps({"success": True, "runs": runs}))
    monkeypatch.setattr(FlowerCommand, "show", show)
    ends, said = ended(chest, capsys)
    assert ends == code and told in said.out + said.err and bool(told) == bool(said.out + said.err)


def test_the_run_has_the_federations_name_and_the_projects_port(chest, tmp_path):
    assert Operator(chest).run_folder == chest / "runs" / "chest"
    (chest / "run").mkdir()  # that an earlier dpfed began
    assert Operator(chest).run_folder == chest / "run"
    project = tmp_path / "project.toml"
    project.write_text("link_port = 8177\n" + project.read_text())
    assert Operator(chest)._port == 8100 and Operator(chest, 9)._port == 9
    provision(Project.load(project), project)
    assert Operator(chest)._port == 8177
    for name in ("proxy.conf", "programs/superlink", "systemd/dpfed-superlink@.service"):
        text = (chest / name).read_text()
        assert "8177" in text and "8100" not in text


class Link:
    """Flower's own list of SuperNodes, behind the commands that the operator gives.

    Attributes:
        lost: number of the registration that happens and whose answer is lost, as when the command is killed.
    """

    def __init__(self):
        self.lost = -9
        self.restart()

    def restart(self):
        """It knows no SuperNode any more."""
        self._state = InMemoryLinkState(MagicMock(), MagicMock())

    def text(self, *words):
        if words[:2] == ("supernode", "list"):
            nodes = [{"node-id": str(node.node_id), "status": node.status} for node in self._state.get_node_info()]
            return json.dumps({"success": True, "nodes": nodes})
        if words[1] == "unregister":
            self._state.delete_node("operator", int(words[2]))
            return "{}"
        try:
            node = self._state.create_node("operator", "operator", Path(words[2]).read_bytes(), 30, name=words[-3])
        except ValueError as error:
            return json.dumps({"success": False, "error-message": str(error)})
        self.lost -= 1
        if self.lost == -1:
            raise operate.Unavailable("flwr says: Terminated.")
        return json.dumps({"success": True, "node-id": str(node)})

    def open(self, key):
        """Whether a SuperNode with this key is let in."""
        return self._state.get_node_id_by_public_key(key.read_bytes()) is not None


@pytest.fixture
def link(monkeypatch):
    link = Link()
    monkeypatch.setattr(FlowerCommand, "text", lambda self, *words: link.text(*words))
    return link


def other(key, letter):
    """Another key in the place of one."""
    key.write_bytes(letter * 40 + b"\n")


@pytest.fixture
def keys(chest):
    return [chest / "nodes" / f"{name}.pub" for name in ("north", "south")]


def test_a_key_exchanged_during_a_run_changes_at_the_superlink(chest, link, keys, monkeypatch, capsys):
    monkeypatch.setattr(operate, "_LOOK", 0.01)
    north, south = keys
    operator, stop, old = Operator(chest), threading.Event(), chest / "old.pub"
    old.write_bytes(north.read_bytes())
    looks, register = [], Operator.register
    monkeypatch.setattr(Operator, "register", lambda self: looks.append(register(self)))
    thread = threading.Thread(target=operator.watch, args=(stop,))
    thread.start()
    try:
        assert until(lambda: looks, 30)
        assert link.open(old)
        other(north, b"n")
        until(lambda: link.open(north), 30)
    finally:
        stop.set()
        thread.join()
    assert link.open(north) and link.open(south) and not link.open(old)
    assert "the SuperNode north, whose key is no longer in use, is unregistered" in capsys.readouterr().out


def test_a_key_unregistered_before_keeps_no_other_out(chest, link, keys, capsys):
    north, south = keys
    first = north.read_bytes()
    Operator(chest).register()
    other(north, b"n")
    Operator(chest).register()
    north.write_bytes(first)
    other(south, b"s")
    Operator(chest).register()
    assert link.open(south) and not link.open(north)
    assert "the SuperNode north is not registered: Flower takes no key twice" in capsys.readouterr().out
    other(north, b"m")  # the site makes another key
    Operator(chest).register()
    assert link.open(north)
    north.write_bytes(first)
    link.restart()
    Operator(chest).register()
    assert link.open(north) and link.open(south)


def test_files_that_are_no_keys_or_damaged_end_no_thread(chest, link, keys):
    (chest / "nodes" / "._north.pub").write_bytes(b"\0\5\26\7\xff")
    Operator(chest).register()
    assert all(map(link.open, keys))
    foreign, looks = chest / "nodes" / "odd.pub", []
    foreign.write_bytes(b"\xff")
    watched = SimpleNamespace(wait=lambda seconds: looks.append(seconds) or len(looks) > 2)
    Operator(chest).watch(watched)  # ends as it is asked to, after two looks
    foreign.unlink()
    registered = chest / "flower" / "operator" / "registered.json"
    for content in (b"", b"[]", b'{"key": 1}', b"\xff"):
        registered.write_bytes(content)
        with pytest.raises(operate.UserError, match="registered.json is damaged.*flower-registered-damaged"):
            Operator(chest).register()
    registered.unlink()
    link.restart()  # as the message says
    Operator(chest).register()
    assert all(map(link.open, keys))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_registration_whose_answer_was_lost_is_taken_up(chest, link, keys, lost, capsys):
    link.lost = lost
    with pytest.raises(operate.Unavailable):
        Operator(chest).register()
    Operator(chest).register()
    assert all(map(link.open, keys)) and "Flower takes no key twice" not in capsys.readouterr().out
    gone, stays = keys[lost], keys[1 - lost]
    key = chest / "gone.pub"
    gone.rename(key)
    Operator(chest).register()
    assert link.open(stays) and not link.open(key)
