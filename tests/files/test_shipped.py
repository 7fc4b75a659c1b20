"""Names of shipped files: found in any folder, second to a user's own files, and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfed.config import load_config
from dpfed.errors import UserError
from dpfed.files import shipped

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_file_of_configs_has_a_name():
    names = {*(f"{name}.toml" for name in (*shipped.config_names(), *shipped.sweep_names())), *shipped.tower_names()}
    assert names == {path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*") if path.is_file()}


def test_hidden_files_of_the_file_system_are_not_shipped_files(tmp_path, monkeypatch):
    for name in ("one.toml", "._one.toml", ".nfs0001.toml", "sweeps/._two.toml", "towers/._small.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    monkeypatch.setattr(shipped, "configs", lambda: tmp_path)
    assert (shipped.config_names(), shipped.sweep_names(), shipped.tower_names()) == (("one",), (), ())


@pytest.mark.parametrize("name", shipped.config_names())
def test_a_shipped_config_is_found_by_name_in_any_folder(name, elsewhere):
    expected = load_config(CONFIGS / f"{name}.toml")
    assert load_config(name) == load_config(f"{name}.toml") == load_config(Path(name)) == expected


def test_a_file_of_the_users_wins_with_or_without_its_suffix(elsewhere):
    (elsewhere / "quickstart").mkdir()  # a run's folder, say: it is not a config and hides none
    assert load_config("quickstart").name == "quickstart"
    (elsewhere / "quickstart.toml").write_text('name = "mine"')
    assert load_config("quickstart").name == load_config("quickstart.toml").name == "mine"
    (elsewhere / "quickstart").rmdir()
    (elsewhere / "quickstart").write_text('name = "without-suffix"')
    assert load_config("quickstart").name == "without-suffix"
    assert shipped.shipped_name("quickstart") is None and shipped.shipped_name("cifar10") == "cifar10"
    (elsewhere / "mine.toml").write_text('name = "mine"')
    assert load_config("mine").name == "mine"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("quickstar", "no file quickstar, .* 'quickstart'.*shipped-no-file"),
        ("configs/quickstart.toml", "configs/quickstart.toml, .* 'quickstart'.*shipped-no-file"),  # in a checkout, it is one
        ("adapt/shape", "'adapt/shapes'.*shipped-no-file"),
        ("something-else", "valid: .*shipped-no-file"),
        ("adapt", "no config .*shipped-no-file"),
        ("sweeps/table5", "`dpfed sweep CONFIG sweeps/table5`.*shipped-sweep"),
        ("towers/small.json", "no config .*shipped-no-file"),
        ("../configs/quickstart", "no config .*shipped-no-file"),
        ("adapt/../quickstart", "no config .*shipped-no-file"),
        ("", "the path given for the configuration is empty"),
        (".", "is a folder, .*shipped-no-file"),
    ],
)
def test_any_other_name_is_refused_with_the_nearest(given, words, elsewhere):
    with pytest.raises(UserError, match=words) as caught:
        load_config(given)
    assert "\n" not in str(caught.value)


def test_a_sweep_is_found_by_name(elsewhere):
    from dpfed.runs.sweep import read_sweep

    base = load_config("cuhk-pedes")
    expected = read_sweep(CONFIGS / "sweeps" / "table6.toml", base)
    assert read_sweep("sweeps/table6", base) == read_sweep("table6", base) == read_sweep(Path("table6.toml"), base) == expected
    with pytest.raises(UserError, match="no sweep .* 'sweeps/table6'.*shipped-no-file"):
        read_sweep("sweeps/table66", base)
    with pytest.raises(UserError, match="no sweep .*shipped-no-file"):
        read_sweep("quickstart", base)


def test_a_shipped_tower_is_found_and_the_users_own_wins(elsewhere):
    pytest.importorskip("open_clip")
    from dpfed.models.blueprints import blueprint
    from dpfed.runs.records import with_absolute_paths

    for name in ("adapt/shapes-public", "adapt/cifar10-public"):
        config = load_config(name)
        assert blueprint(config.model).size == config.data.size or config.data.size is None
        # A run keeps the name, so that it goes on in another installation; its digest tells a changed file.
        assert with_absolute_paths(config).model.architecture == config.model.architecture
    (elsewhere / "towers").mkdir()
    file = elsewhere / "towers" / "small.json"
    file.write_text((CONFIGS / "towers" / "small.json").read_text().replace('"image_size": 32', '"image_size": 64'))
    config = load_config("adapt/shapes-public")
    assert blueprint(config.model).size == 64
    assert with_absolute_paths(config).model.architecture == str(file)
