"""`dpfed config`: what is shipped, as it is, and every key with what it may be and what it means."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

from dpfed.cli import app
from dpfed.config import Config, parse_config
from dpfed.config.keys import all_keys, matching
from dpfed.data.importers import importers
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves, put
from tests.patience import run_to_end

KEYS = {key.name: key for key in all_keys()}
OPTIONS = {name for name in KEYS if name.endswith(".options")}  # tables, whose keys are not known
OF_METHODS = {name for name in KEYS if name.startswith("bounding.options.")}


def run(*arguments, **environment):
    command = [sys.executable, "-m", "dpfed", "config", *arguments]
    return run_to_end(command, capture_output=True, timeout=60, env={**os.environ, **environment}, check=False)


def refused(key, value):
    tree = {}
    put(tree, key, value)
    with pytest.raises(UserError) as caught:
        parse_config(tree)
    return str(caught.value)


def test_every_key_of_the_schema_is_explained():
    defaults = leaves(Config().model_dump())
    del defaults["name"]
    assert {"name", *defaults} - OPTIONS == set(KEYS) - OPTIONS - OF_METHODS
    for key in KEYS.values():
        assert len(key.meaning) >= 8, f"{key.name} wants a description where it is declared"
        assert key.allowed


def test_defaults_are_those_of_an_empty_config():
    defaults = leaves(Config().model_dump(mode="json"))
    for key in KEYS.values():
        if key.name not in OPTIONS | OF_METHODS:
            assert key.default == defaults[key.name], key.name
    assert KEYS["adaptation.image_layers"].default_in_toml == '["q", "v"]'
    assert (KEYS["data.records"].default_in_toml, KEYS["data.public"].default_in_toml) == ("20000", "false")
    assert (KEYS["data.path"].default_in_toml, KEYS["bounding.options"].default_in_toml) == ("", "{}")
    for key in KEYS.values():
        if key.default_in_toml:
            assert tomllib.loads(f"x = {key.default_in_toml}")["x"] == key.default


def test_ranges_are_those_that_are_enforced():
    assert KEYS["objective.augmentations"].allowed == "whole number, 0 to 16" and "17" in refused("objective.augmentations", 17)
    assert KEYS["optimizer.momentum"].allowed == "number, 0 or more, below 1" and refused("optimizer.momentum", 1.0)
    assert KEYS["objective.temperature"].allowed == "number, 0.001 to 100" and refused("objective.temperature", 0.0)
    assert KEYS["views.crop_scale"].allowed == "[number, number]" and refused("views.crop_scale", [0.5])
    assert KEYS["data.records"].allowed == "whole number, 16 to 10,000,000" and refused("data.records", 10_000_001)
    assert KEYS["evaluation.templates"].allowed == "list of one or more texts" and refused("evaluation.templates", [])
    assert KEYS["adaptation.text_layers"].allowed.startswith("list of at least one of 'q',")


def test_every_importer_is_a_source():
    """Importers are not loaded to show the keys."""
    there = {"shapes", "scenes", "procedural", "store", *importers()}
    assert set(re.findall("'(.+?)'", KEYS["data.source"].allowed)) == there


def test_keys_say_which_others_give_them_an_effect():
    assert KEYS["data.records"].depends_on == ("data.source",)
    assert KEYS["data.source"].depends_on == KEYS["privacy.unit"].depends_on == ()
    assert KEYS["privacy.batch"].depends_on == ("bounding.method",)
    assert "[depends on objective.name]" in CliRunner().invoke(app, ["config", "keys", "objective.bias"]).output
    with pytest.raises(UserError, match="objective.name"):
        parse_config({"objective": {"bias": 1.0}})
    assert all(set(key.depends_on) <= set(KEYS) for key in KEYS.values())


@pytest.mark.long
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


def test_it_answers_at_once():
    """Reading help must not wait for torch."""
    code = (
        "import sys, dpfed.cli.config\n"
        "from dpfed.cli.config import shipped_configs; from dpfed.config.keys import all_keys\n"
        "shipped_configs(); all_keys(); print('torch' in sys.modules, 'matplotlib' in sys.modules, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
