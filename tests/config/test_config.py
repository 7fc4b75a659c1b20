"""Configurations: round trip, and refusal of everything that is not meant."""

import tomllib
from pathlib import Path

import pytest

from dpfed.config import Config, load_config, parse_config
from dpfed.config.reading import read_back
from dpfed.errors import UserError
from dpfed.files.toml_file import toml_value
from tests.patience import Patience

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path):
    assert load_config(path).name == path.stem


def test_a_dumped_config_reads_back_the_same(tmp_path):
    config = parse_config({"privacy": {"epsilon": 3.0, "seed": 4}, "views": {"crop_scale": [0.2, 1.0]}})
    (tmp_path / "config.toml").write_text(config.dump())
    assert load_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("tree", "key", "hint"),
    [
        ({"privacy": {"epsilom": 1.0}}, "privacy.epsilom", "epsilon"),
        ({"privcy": {}}, "privcy", "privacy"),
        ({"optimizer": {"lr_": 0.1}}, "optimizer.lr_", "learning_rate"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_a_valid_one(tree, key, hint):
    with pytest.raises(UserError) as caught:
        parse_config(tree)
    assert key in str(caught.value) and hint in str(caught.value)


@pytest.mark.parametrize(
    "tree",
    [
        {"views": {"flip": 1.5}},
        {"views": {"crop_scale": [0.9, 0.2]}},
        {"views": {"crop_scale": [0.5, 2.0]}},
        {"privacy": {"epsilon": float("nan")}},
        {"privacy": {"epsilon": "much"}},
        {"privacy": 8.0},
        {"objective": {"temperature": 0.0}},
        {"name": "../escape"},
        {"bounding": {"method": "magic"}},
    ],
)
def test_values_out_of_range_are_refused_in_one_line(tree):
    with pytest.raises(UserError) as caught:
        parse_config(tree)
    assert "\n" not in str(caught.value)


def test_overrides(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('name = "a"\n[privacy]\nepsilon = 8.0\n')
    config = load_config(path, ["privacy.epsilon=4", "data.stores=../some where", "views.crop_scale=[0.5, 1.0]", "name=b"])
    assert (config.privacy.epsilon, config.data.stores, config.views.crop_scale, config.name) == (
        4,
        "../some where",
        (0.5, 1),
        "b",
    )
    for wrong in ("privacy.epsilon", "=3", "name.x=3", "privacy.epsilonn=3"):
        with pytest.raises(UserError):
            load_config(path, [wrong])


def test_missing_and_broken_files_are_one_sentence(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("this is not toml")
    for path in (tmp_path / "missing.toml", broken, tmp_path):
        with pytest.raises(UserError, match=path.name):
            load_config(path)


def test_every_field_has_a_default():
    assert Config() == parse_config({})


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"model": {"kind": "open_clip"}}, "needs model.architecture"),
        ({"adaptation": {"image_layers": ["q", "q"]}}, "each layer may be listed only once"),
        ({"adaptation": {"text_layers": []}}, "give at least one"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(tree, words):
    with pytest.raises(UserError, match=words) as caught:
        parse_config(tree)
    assert "{" not in str(caught.value)


def test_a_resolved_open_clip_configuration_reads_back():
    config = parse_config({"model": {"kind": "open_clip", "architecture": "ViT-B-32"}, "adaptation": {"image": "frozen"}})
    assert parse_config(tomllib.loads(config.dump())) == config


def test_an_assignment_without_a_value_takes_a_key_out():
    path = Path(__file__).parents[2] / "configs" / "quickstart.toml"
    assert load_config(path).privacy.epsilon == 8.0
    assert load_config(path, ["privacy.epsilon="]).privacy.epsilon is None


def nested_keys(parts):
    return ("a." * parts + "b = 1", f"[{'a.' * parts}b]", f"x = {{{'a.' * parts}b = 1}}", '"a" . ' * parts + "b = 1")


@pytest.mark.parametrize("text", nested_keys(20_000))
def test_a_key_of_very_many_parts_is_refused_at_once(tmp_path, text):
    """The parser's time grows with the square of their number: such a file of 1 MB would take hours."""
    (tmp_path / "deep.toml").write_text(text)
    patience = Patience(2)
    with pytest.raises(UserError, match="toml-too-deep"):
        load_config(tmp_path / "deep.toml")
    assert toml_value(text) == text and toml_value(f"{{{text}}}") == f"{{{text}}}"
    assert not patience.ended


@pytest.mark.parametrize("read", [parse_config, read_back])
def test_another_unit_is_refused_in_a_sentence(read):
    with pytest.raises(UserError, match=r"mine\.toml: 'privacy\.unit': expected 'record' or 'user'; got 'unit'"):
        read({"privacy": {"epsilon": 4.0, "unit": "unit", "per_unit": 2}}, "mine.toml")


@pytest.mark.parametrize("value", [0.0, 1e-30, 9e-6, 1e10, float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize(("key", "tree"), [("clip_norm", {}), ("stability", {"clipping": "automatic"})])
def test_a_hopeless_clip_norm_or_stability_is_refused_with_help(key, tree, value):
    with pytest.raises(UserError) as refused:
        parse_config({"bounding": {**tree, key: value}})
    said = str(refused.value)
    assert f"'bounding.{key}': expected" in said and f"got {value!r}" in said
    assert "begin with" in said or "a finite number" in said


@pytest.mark.parametrize(("key", "least"), [("clip_norm", 1e-5), ("stability", 1e-4)])
def test_the_limits_themselves_are_allowed(key, least):
    tree = {"clipping": "automatic"} if key == "stability" else {}
    for value in (least, 1.0, 1e4):
        assert getattr(parse_config({"bounding": {**tree, key: value}}).bounding, key) == value
