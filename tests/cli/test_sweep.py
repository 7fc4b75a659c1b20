"""Sweeps: every run trained once, what is wrong refused before training, and the privacy of all runs added up in words."""

from __future__ import annotations

import html
import itertools
import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dpfed.cli import runs as run_commands
from dpfed.cli import sweep as sweep_command
from dpfed.config import Config, load_config, parse_config
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger
from dpfed.report.view import RunView
from dpfed.runs.sweep import joint_promise, read_sweep, sweep
from dpfed.training.coordinator import Coordinator
from tests.conftest import tiny_tree
from tests.killed import killed

CONFIGS = Path(__file__).parents[2] / "configs"
BASES = ("cuhk-pedes", "rstpreid", "deepfashion-mm", "roco")
SWEEPS = ("table5", "table6", "table7", "figure5")

TWO = """
name = "two"
about = "Two group sizes"
[[run]]
name = "small"
set = { "bounding.group_size" = 4 }
[[run]]
name = "large"
[run.set]
bounding.group_size = 10
privacy.epsilon = 4.0
"""


@pytest.fixture(scope="module")
def base(shapes) -> Config:
    tree = tiny_tree(shapes)
    tree["privacy"]["steps"] = 3
    tree["evaluation"] = {"tasks": ["retrieval"], "records": 50}
    return parse_config(tree)


def written(folder: Path, text: str = TWO) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def swept(base, tmp_path_factory):
    """A folder with a finished sweep, and its outcome; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("swept")
    return folder, sweep(base, written(folder), folder / "runs")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_every_run_is_trained_once_with_its_changes_and_compared(base, swept, monkeypatch):
    tmp_path, outcome = swept
    small, large = tmp_path / "runs" / "two" / "small", tmp_path / "runs" / "two" / "large"
    assert [run.name for run in outcome.runs] == ["small", "large"]
    for folder, size, epsilon in ((small, 4, 8.0), (large, 10, 4.0)):
        config = load_config(folder / "config.toml")
        assert (config.name, config.bounding.group_size, config.privacy.epsilon) == (folder.name, size, epsilon)
        assert config.views == base.views and config.model == base.model
        assert json.loads((folder / "results.json").read_text())["privacy"]["group_size"] == size
    page = outcome.comparison.read_text()
    assert outcome.comparison == tmp_path / "runs" / "two" / "comparison.html" and "small" in page and "large" in page
    assert outcome.promise in html.unescape(page)
    before = contents(small) | contents(large)
    monkeypatch.setattr(Coordinator, "apply", lambda *_: pytest.fail("a finished run was trained again"))
    assert sweep(base, tmp_path / "sweep.toml", tmp_path / "runs").promise == outcome.promise
    assert before == contents(small) | contents(large)


@pytest.mark.long
def test_interrupted_runs_are_resumed_finished_ones_left_alone(base, tmp_path):
    file = written(tmp_path)
    with killed(Coordinator, "apply", 5):  # the second of the second run's three steps
        sweep(base, file, tmp_path / "runs")
    small, large = tmp_path / "runs" / "two" / "small", tmp_path / "runs" / "two" / "large"
    before = contents(small)
    assert (large / "secret.key").exists() and not (large / "results.json").exists()
    started = (large / "ledger.jsonl").read_text().splitlines()
    sweep(base, file, tmp_path / "runs")
    assert contents(small) == before
    assert (large / "ledger.jsonl").read_text().splitlines()[: len(started)] == started  # the same run went on
    assert Ledger.open(large / "ledger.jsonl").charged == 3 and (large / "results.json").exists()


@pytest.mark.long
def test_the_joint_promise_is_the_sum_of_epsilons_and_of_deltas(swept):
    folder, outcome = swept
    spent = [
        json.loads((folder / "runs" / "two" / name / "results.json").read_text())["privacy"] for name in ("small", "large")
    ]
    epsilon, delta = (sum(privacy[key] for privacy in spent) for key in ("epsilon", "delta"))
    stated = outcome.promise.partition("(")[2].partition(")")[0].split(", ")
    assert epsilon <= float(stated[0]) < epsilon + 0.01 + 1e-9 and epsilon > max(item["epsilon"] for item in spent)
    assert delta <= float(stated[1]) < 1.01 * delta


def test_no_joint_promise_without_each_runs_or_of_other_units(swept):
    first, second = swept[1].runs
    void = RunView(**{**vars(second), "card_markdown": "# Privacy card of large: no privacy guarantee holds\n\nNone.\n"})
    assert joint_promise([first, void]).startswith("No joint promise") and "large" in joint_promise([first, void])
    by_user = second.config_toml.replace('unit = "record"', 'unit = "user"')
    people = RunView(**{**vars(second), "config_toml": by_user})
    assert joint_promise([first, people]).startswith("No joint promise")
    assert joint_promise([people, people]).startswith("Joint promise")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (TWO.replace("bounding.group_size = 10", "bounding.group_sise = 10"), "run 'large'.*did you mean 'group_size'"),
        (TWO.replace("bounding.group_size = 10", "bouding.group_size = 10"), "run 'large'.*did you mean 'bounding'"),
        (TWO.replace("bounding.group_size = 10", "data.size.x = 10"), "run 'large'.*'size' is a value"),
        (TWO.replace("privacy.epsilon = 4.0", "views.flip = 7"), "run 'large'.*views.flip"),
        (TWO.replace("privacy.epsilon = 4.0", 'name = "x"'), "run 'large'.*sweep-set-name"),
        (TWO.replace('"large"', '"small"'), "'small'.*sweep-name-twice"),
        (TWO.replace('"large"', '"comparison.html"'), "give the run another name.*sweep-name-taken"),
        (TWO.replace('"large"', '"../large"'), "run 2.*'../large'.*sweep-name-wrong"),
        (TWO.replace('"large"', '".."'), "run 2.*'..'.*sweep-name-wrong"),
        (TWO.replace('"two"', '"t/wo"'), "'t/wo'"),
        (TWO.replace("[run.set]", "[run.sett]"), "run 2.*did you mean 'set'.*sweep-key-unknown"),
        (TWO.replace("about", "abuot"), "did you mean 'about'.*sweep-key-unknown"),
        ('name = "none"', "sweep-runs-missing"),
        ('name = "none"\n[[run]]\nname = "a"\nset = 3', "run 'a'.*sweep-set-type"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_bad_entry_is_refused_before_anything_is_trained(base, tmp_path, text, named):
    file = written(tmp_path, text)
    with pytest.raises(UserError, match=named) as caught:
        sweep(base, file, tmp_path / "runs")
    assert "\n" not in str(caught.value) and not (tmp_path / "runs").exists()


def test_kept_runs_of_another_configuration_are_left_alone(base, swept):
    tmp_path, file = swept[0], swept[0] / "sweep.toml"
    before = contents(tmp_path / "runs")
    other = base.model_copy(update={"privacy": base.privacy.model_copy(update={"delta": 1e-3})})
    with pytest.raises(UserError, match=r"two/small .*privacy\.delta"):
        sweep(other, file, tmp_path / "runs")
    large = tmp_path / "runs" / "two" / "large" / "config.toml"
    large.write_bytes(before[large].replace(b"[privacy]\n", b"[privacy]\ndelta = 0.001\n"))
    with pytest.raises(UserError, match=r"two/large .*privacy\.delta"):
        sweep(base, file, tmp_path / "runs")
    large.unlink()
    with pytest.raises(UserError, match="large .*run-no-config"):
        sweep(base, file, tmp_path / "runs")
    (tmp_path / "runs" / "two" / "large" / "config.toml").write_bytes(
        before[tmp_path / "runs" / "two" / "large" / "config.toml"]
    )
    assert contents(tmp_path / "runs") == before


@pytest.mark.long
def test_what_a_run_chose_by_itself_is_no_other_configuration(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_open = parse_config(
        {
            **base.model_dump(),
            "data": {**base.data.model_dump(), "path": os.path.relpath(base.data.path), "size": None},
            "bounding": {**base.bounding.model_dump(), "engine": "auto"},
            "training": {**base.training.model_dump(), "device": "auto"},
        }
    )
    file = written(tmp_path, 'name = "one"\n[[run]]\nname = "a"\n')
    sweep(left_open, file, "runs")
    before = contents(tmp_path / "runs" / "one" / "a")
    sweep(left_open, file, "runs")
    assert contents(tmp_path / "runs" / "one" / "a") == before


@pytest.mark.long
def test_the_command_prints_the_table_and_the_joint_promise(base, tmp_path):
    app = typer.Typer()
    run_commands.register(app)
    sweep_command.register(app)
    (tmp_path / "base.toml").write_text(base.dump())
    arguments = ["sweep", tmp_path / "base.toml", written(tmp_path), "--runs", tmp_path / "runs", "--set", "views.flip=0.25"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.exception
    said = ("Two group sizes", "small", "large", "Image to text R@10", "Text to image R@10", "epsilon", "Joint promise")
    assert [text for text in said if text not in result.output] == []
    assert load_config(tmp_path / "runs" / "two" / "small" / "config.toml").views.flip == 0.25
    missing = CliRunner().invoke(app, ["sweep", str(tmp_path / "base.toml"), str(tmp_path / "nowhere.toml")])
    assert isinstance(missing.exception, UserError) and "nowhere.toml" in str(missing.exception)


@pytest.mark.parametrize(("base_name", "sweep_name"), list(itertools.product(BASES, SWEEPS)))
def test_every_shipped_sweep_fits_every_multi_modal_config(base_name, sweep_name):
    plan = read_sweep(CONFIGS / "sweeps" / f"{sweep_name}.toml", load_config(CONFIGS / f"{base_name}.toml"))
    assert plan.name == sweep_name and plan.about
    everything = [config.model_copy(update={"name": "same"}) for config in plan.configs.values()]
    assert all(one != other for one, other in itertools.combinations(everything, 2))
