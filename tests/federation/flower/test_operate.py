"""The operator's program: what a service manager starts again, and what it leaves to the operator."""

import threading

import pytest

pytest.importorskip("flwr")

from dpfed.cli import main  # noqa: E402
from dpfed.federation.flower import operator as operate  # noqa: E402
from dpfed.federation.flower.command import FlowerCommand  # noqa: E402
from dpfed.federation.flower.operator import Operator  # noqa: E402
from dpfed.federation.provisioning.project import Project  # noqa: E402
from dpfed.federation.provisioning.provision import provision  # noqa: E402
from tests.federation.provisioning.office import Office  # noqa: E402

LOST = '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}'


@pytest.fixture
def chest(shapes, tmp_path, monkeypatch):
    """A coordinator's folder with terms, and a SuperLink that is there."""
    monkeypatch.setenv("DPFED_BUDGETS", str(tmp_path / "shelf"))
    Office(tmp_path, shapes.path).joined()
    monkeypatch.setattr(Operator, "wait_for_link", lambda self: None)
    monkeypatch.setattr(operate.signal, "signal", lambda *_: None)  # of this process
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
    assert "cannot register: flwr says: gone." in said and "the SuperNode north is registered, as 7" in said


def test_a_run_that_stopped_before_its_end_is_said(chest, monkeypatch, capsys):
    monkeypatch.setattr(Operator, "register", lambda self: None)
    monkeypatch.setattr(Operator, "watch", lambda self, stop: None)
    monkeypatch.setattr(FlowerCommand, "show", lambda self, *words: None)
    states = iter(["finished:failed", "finished:completed"])
    monkeypatch.setattr(Operator, "_going", lambda self: None)
    runs = lambda self: [{"run-id": 1, "status": next(states), "pending-at": "1"}]  # noqa: E731
    monkeypatch.setattr(Operator, "_runs", runs)
    code, said = ended(chest, capsys)
    assert code == 1 and "the run stopped before its end (finished:failed)" in said.out
    code, said = ended(chest, capsys)
    assert code == 0 and said.out == ""


def test_the_run_has_the_federations_name_and_the_links_port_is_the_projects(chest, tmp_path):
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
