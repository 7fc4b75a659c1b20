"""`dpfed config`: what is shipped, as it is, and every key with what it may be and what it means."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.cli import app
from dpfed.config import Config, parse_config
from dpfed.config.keys import all_keys, matching, section_meanings
from dpfed.config.toml_file import leaves, put
from dpfed.errors import UserError
from dpfed.privacy.method import METHODS
from dpfed.privacy.plan import PrivacyPlan

CONFIGS = Path(__file__).parents[2] / "configs"
KEYS = {key.name: key for key in all_keys()}
OF_METHODS = {name for name in KEYS if name.startswith("bounding.options.")}


def run(*arguments, **environment):
    command = [sys.executable, "-m", "dpfed", "config", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, env={**os.environ, **environment}, check=False)


def refused(key, value):
    tree = {}
    put(tree, key, value)
    with pytest.raises(UserError) as caught:
        parse_config(tree)
    return str(caught.value)


def test_every_key_of_the_schema_is_explained():
    defaults = leaves(Config().model_dump())
    del defaults["name"]
    assert {"name", *defaults} - {"bounding.options"} == set(KEYS) - {"bounding.options"} - OF_METHODS
    for key in KEYS.values():
        assert len(key.meaning) >= 8, f"{key.name} wants a description where it is declared"
        assert key.allowed
    assert all(len(words) >= 8 for words in section_meanings().values())


def test_defaults_are_those_of_an_empty_config():
    defaults = leaves(Config().model_dump(mode="json"))
    for key in KEYS.values():
        if key.name not in {"bounding.options", *OF_METHODS}:
            assert key.default == defaults[key.name], key.name
    assert KEYS["adaptation.image_layers"].default_in_toml == '["q", "v"]'
    assert (KEYS["data.records"].default_in_toml, KEYS["data.public"].default_in_toml) == ("20000", "false")
    assert (KEYS["data.path"].default_in_toml, KEYS["bounding.options"].default_in_toml) == ("", "{}")
    for key in KEYS.values():
        if key.default_in_toml:
            assert tomllib.loads(f"x = {key.default_in_toml}")["x"] == key.default


@pytest.mark.parametrize("name", [key.name for key in KEYS.values() if key.choices])
def test_choices_are_all_that_is_allowed(name):
    key = KEYS[name]
    if name not in {"data.source", *OF_METHODS}:  # looked up when records are opened, and when the plan is made
        assert "no-such-choice" in refused(name, ["no-such-choice"] if key.allowed.startswith("list") else "no-such-choice")
    assert all(repr(choice) in key.allowed for choice in key.choices)


def test_ranges_are_those_that_are_enforced():
    assert KEYS["objective.augmentations"].allowed == "whole number, 0 to 16" and "17" in refused("objective.augmentations", 17)
    assert KEYS["optimizer.momentum"].allowed == "number, 0 or more, below 1" and refused("optimizer.momentum", 1.0)
    assert KEYS["objective.temperature"].allowed == "number, above 0" and refused("objective.temperature", 0.0)
    assert KEYS["views.crop_scale"].allowed == "[number, number]" and refused("views.crop_scale", [0.5])


def plan_of(key, value):
    """A plan for 1,000 records with one value changed."""
    tree = {"privacy": {"epsilon": 8.0, "batch": 100, "steps": 5, "accountant": "rdp"}, "bounding": {"group_size": 4}}
    if key == "privacy.noise_multiplier":
        del tree["privacy"]["epsilon"]
    put(tree, key, value)
    return PrivacyPlan.from_config(1000, parse_config(tree))


@pytest.mark.parametrize(
    ("key", "allowed", "wrong", "right"),
    [
        ("bounding.group_size", "whole number, 1 or more", (0,), (1,)),
        ("bounding.clip_norm", "number, 1e-05 to 1e+09", (9e-6, 1e10), (1e-5, 1e9)),
        ("bounding.max_group_size", "whole number, 2 or more", (1,), (2,)),
        ("privacy.epsilon", "number, 0.001 or more", (0.0, -1.0, 0.0009), (0.001, 0.5)),
        ("privacy.noise_multiplier", "number, 0.1 or more", (0.09,), (0.1,)),
        ("privacy.delta", "number, above 0, below 1", (0.0, 1.0), (1e-5,)),
        ("privacy.batch", "whole number, 1 or more", (0,), (4,)),
        ("privacy.steps", "whole number, 1 or more", (0,), (1,)),
    ],
)
def test_ranges_of_the_plan_are_those_that_it_enforces(key, allowed, wrong, right):
    assert KEYS[key].allowed == allowed
    for value in wrong:
        with pytest.raises(UserError):
            plan_of(key, value)
    for value in right:
        plan_of(key, value)


def test_the_range_of_the_stability_is_that_which_is_enforced():
    assert KEYS["bounding.stability"].allowed == "number, 0.0001 to 1e+09"
    assert "9e-05" in refused("bounding.stability", 9e-5) and "1e+09" in refused("bounding.stability", 1e10)


def test_keys_of_methods_are_those_that_they_take():
    options = {"norms", "one_sided", "spread_out", "release_share", "slots", "dimensions", "views"}
    assert {name.rpartition(".")[2] for name in OF_METHODS} == options
    share = KEYS["bounding.options.release_share"]
    assert share.default is None and "default 0.2 (infonce), 0.5 (barlow_twins)" in share.meaning
    assert share.depends_on == ("bounding.method", "objective.name") and "released: " in share.meaning
    assert KEYS["bounding.options.norms"].meaning.startswith("logit and sample: ")
    assert KEYS["bounding.options.slots"].default == 64 and KEYS["bounding.options.slots"].allowed == "whole number, 2 or more"
    for name in OF_METHODS:
        for method in ("logit", "sample", "released"):
            tree = {"bounding": {"method": method}, "privacy": {"epsilon": 8.0, "batch": 100, "steps": 5}}
            put(tree, name, 0.3 if KEYS[name].default is None else KEYS[name].default)
            try:
                PrivacyPlan.sketch(parse_config(tree))
                assert method in KEYS[name].meaning.partition(":")[0]
            except UserError as error:
                assert method not in KEYS[name].meaning.partition(":")[0]
                assert "unknown key" in str(error) and f"bounding.method = '{method}'" in str(error)


def test_keys_say_which_others_decide_whether_they_have_an_effect():
    assert KEYS["data.records"].depends_on == ("data.source",)
    assert KEYS["data.source"].depends_on == KEYS["privacy.unit"].depends_on == ()
    assert KEYS["privacy.batch"].depends_on == ("bounding.method",)
    assert "[depends on objective.name]" in CliRunner().invoke(app, ["config", "keys", "objective.bias"]).output
    with pytest.raises(UserError, match="objective.name"):
        parse_config({"objective": {"bias": 1.0}})
    assert all(set(key.depends_on) <= set(KEYS) for key in KEYS.values())


def test_sources_and_methods_are_those_that_there_are():
    from dpfed.data.importers import importers

    assert set(KEYS["data.source"].choices) == {"shapes", "scenes", "procedural", "store", *importers()}
    assert set(KEYS["bounding.method"].choices) == set(METHODS)


def test_keys_are_found_by_section_by_name_and_by_words():
    assert {key.section for key in matching(["privacy"])} == {"privacy"}
    assert {key.section for key in matching(["privacy", "optimizer"])} == {"privacy", "optimizer"}
    assert [key.name for key in matching(["[privacy]"])] == [key.name for key in matching(["privacy"])]
    assert [key.name for key in matching(["privacy.epsilon"])] == ["privacy.epsilon"]
    assert [key.name for key in matching(["name"])] == ["name"]
    assert {"optimizer.learning_rate"} <= {key.name for key in matching(["learning", "rate"])}
    assert matching(["EPSILON"]) == matching(["epsilon"]) and len(matching(["epsilon"])) >= 2
    assert len(matching([])) == len(KEYS)
    with pytest.raises(UserError, match="did you mean 'privacy'"):
        matching(["privcy"])


def test_show_prints_a_file_byte_by_byte():
    for name in ("quickstart", "adapt/shapes", "sweeps/table7"):
        assert run("show", name).stdout == (CONFIGS / f"{name}.toml").read_bytes()
    assert run("show", "towers/small.json", LC_ALL="C", PYTHONUTF8="0").stdout == (CONFIGS / "towers/small.json").read_bytes()
    wrong = run("show", "quikstart")
    assert wrong.returncode == 2 and b"did you mean 'quickstart'?" in wrong.stderr and not wrong.stdout


def test_list_names_everything():
    listed = CliRunner().invoke(app, ["config", "list"]).output
    entries = json.loads(CliRunner().invoke(app, ["config", "list", "--json"]).output)
    assert {"name", "about", "epsilon", "needs"} == set(entries["configs"][0])
    for entry in (*entries["configs"], *entries["sweeps"]):
        assert entry["name"] in listed and entry["about"] in listed and entry["needs"] in listed


def test_keys_are_one_line_each_for_a_pipe_and_json_for_scripts():
    lines = CliRunner().invoke(app, ["config", "keys"]).output.splitlines()
    assert [line.split()[0] for line in lines] == list(KEYS)
    entries = json.loads(CliRunner().invoke(app, ["config", "keys", "--json", "privacy"]).output)
    assert [entry["name"] for entry in entries] == [key.name for key in matching(["privacy"])]
    assert all(set(entry) == {"name", "section", "allowed", "choices", "default", "meaning", "depends_on"} for entry in entries)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_keys_can_be_read_on_a_terminal_of_any_width(columns, monkeypatch):
    from rich.console import Console

    from dpfed.console import terminal

    screen = Console(force_terminal=True, width=columns, color_system=None, record=True)
    monkeypatch.setattr(terminal, "console", screen)
    assert CliRunner().invoke(app, ["config", "keys"]).exit_code == 0
    text = screen.export_text()
    assert max(map(len, text.splitlines())) <= columns
    words = set(text.split())  # none is broken over two lines
    for key in KEYS.values():
        assert key.name in words or key.name.removeprefix(f"{key.section}.") in words, key.name


def test_it_answers_at_once():
    """Reading help must not wait for torch."""
    code = (
        "import sys, dpfed.cli.config\n"
        "from dpfed.cli.config import shipped_configs; from dpfed.config.keys import all_keys\n"
        "shipped_configs(); all_keys(); print('torch' in sys.modules, 'matplotlib' in sys.modules, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
