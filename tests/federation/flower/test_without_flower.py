"""Commands that need Flower say how to install it, before they make or wait for anything."""

from importlib.metadata import PackageNotFoundError

import pytest

from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.flower import app_folder, command


@pytest.fixture
def chest(tmp_path, monkeypatch):
    """A folder that passes for a coordinator's."""
    monkeypatch.setattr(CoordinatorFolder, "open", lambda path: None)
    (tmp_path / "chest").mkdir()
    return tmp_path / "chest"


@pytest.mark.parametrize(
    "words",
    [
        ("federation", "run", "chest"),
        ("federation", "demo", "federation", "--run", "run"),
        ("site", "supernode", "--superlink", "localhost:1"),
        ("site", "app", "--runtime-api-address", "localhost:1", "--superexec-auth-secret-file", "secret"),
    ],
)
def test_flower_is_not_installed(chest, dpfed, monkeypatch, words):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(app_folder, "version", absent)
    monkeypatch.chdir(chest.parent)
    code, _, said = dpfed(*words)
    assert code == 2 and said.endswith("pip install 'dpfed[flower]'. [flower-missing]\n")
    assert list(chest.parent.iterdir()) == [chest] and not list(chest.iterdir())


def test_the_program_is_gone(chest, dpfed, monkeypatch):
    monkeypatch.setattr(app_folder, "version", lambda name: app_folder.FLOWER_VERSION)
    monkeypatch.setattr(command.shutil, "which", lambda name, path: None)
    code, _, said = dpfed("federation", "run", chest)
    assert code == 2 and said.endswith("[flower-no-program]\n") and not list(chest.iterdir())
