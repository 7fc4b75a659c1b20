"""What people read when a value is wrong: plain words for all that pydantic can find, and no value quietly made another."""

from __future__ import annotations

import datetime
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import dpfed.baselines.methods.logit
import dpfed.baselines.methods.released
import dpfed.federation.simulation
import dpfed.federation.site.folder  # noqa: F401 (for its sections, like the three above)
from dpfed.config import Config, load_config, parse_config
from dpfed.errors import UserError
from dpfed.schema.section import Section
from dpfed.schema.wording import _WORDS, problem

JARGON = re.compile(
    r"Input|Value error|instance of|dictionary|Config\b|pydantic|valid (number|integer|boolean|string|tuple)|Field "
)
WRONG = (
    *(None, True, 0, 1, -1, 3, 10**30, 10**400, 10**5000, 0.5, 3.0, 1e308, math.nan, math.inf, "", "x", "1e3", "true", "8"),
    *("a\nb", "\x1b[2J", "\udcff", "x" * 1000, [], [1], [1, 2], [1, 2, 3], ["q"], ["q", "q"], ["x", ""], [[[]]], [True, 1]),
    *({}, {"a": 1}, {"a": [1]}, {1: 2}, datetime.date(2026, 1, 1)),
)


def sections(kind: type[Section] = Section) -> list[type[Section]]:
    return [section for below in kind.__subclasses__() if below is not Config for section in (below, *sections(below))]


def wrong_values():
    for section in sections():
        yield from ((section, {name: value}) for name in section.model_fields for value in WRONG)
        yield section, {"no_such_key": 1}
        yield section, {"no\nsuch": 1}


def test_every_error_that_a_section_can_raise_is_in_plain_words():
    kinds, count = set(), 0
    for section, tree in wrong_values():
        try:
            section(**tree)
        except ValidationError as error:
            count += 1
            kinds |= {detail["type"] for detail in error.errors()[:1]}
            said = problem(error, section)
            assert not JARGON.search(said) and "\n" not in said and len(said) < 600, said
    assert len(sections()) >= 16 and count > 2000
    assert kinds - {"missing", "extra_forbidden"} <= _WORDS.keys()


@pytest.mark.long
def test_configurations_are_refused_in_words_that_name_the_key():
    for name, field in Config.model_fields.items():
        for key in [name, *(f"{name}.{key}" for key in getattr(field.annotation, "model_fields", ()))]:
            for value in WRONG:
                tree = {name: value} if key == name else {name: {key.partition(".")[2]: value}}
                try:
                    parse_config(tree, "mine.toml")
                except UserError as error:
                    said = str(error)
                    assert said.startswith("mine.toml: ") and name in said, said
                    assert not JARGON.search(said) and "\n" not in said and "--" not in said and len(said) < 700, said


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"privacy": {"epsilon": True}}, "'privacy.epsilon': expected a number; got true."),
        ({"privacy": {"epsilon": "8"}}, "'privacy.epsilon': expected a number; got '8'."),
        ({"privacy": {"epsilon": "1e3"}}, "'privacy.epsilon': expected a number; got '1e3'."),
        ({"privacy": {"epsilon": math.nan}}, "'privacy.epsilon': expected a finite number; got nan."),
        ({"privacy": {"steps": 100.0}}, "'privacy.steps': expected a whole number, such as 100; got 100.0."),
        ({"privacy": {"steps": "100"}}, "'privacy.steps': expected a whole number, such as 100; got '100'."),
        ({"privacy": {"batch": False}}, "'privacy.batch': expected a whole number, such as 100; got false."),
        ({"privacy": {"seed": True}}, "'privacy.seed': expected a whole number, such as 100; got true."),
        ({"data": {"public": "yes"}}, "'data.public': expected true or false; got 'yes'."),
        ({"data": {"public": 1}}, "'data.public': expected true or false; got 1."),
        ({"data": {"path": 2026}}, "'data.path': expected a string, in quotes; got 2026."),
        ({"data": {"path": ""}}, "'data.path': expected a non-empty string; got ''."),
        ({"data": {"path": "a\0b"}}, r"'data.path': expected no line break or other control character; got 'a\x00b'."),
        ({"data": 3}, "'data': expected a section, that is keys with values; got 3."),
        ({"views": {"crop_scale": [True, 1.0]}}, "'views.crop_scale[0]': expected a number; got true."),
        ({"views": {"crop_scale": "0.2"}}, "'views.crop_scale': expected a list, such as [1, 2]; got '0.2'."),
        ({"views": {"crop_scale": [0.2]}}, "'views.crop_scale[1]' is missing."),
        ({"views": {"flip": 2}}, "'views.flip': expected at most 1; got 2."),
        ({"objective": {"temperature": 0}}, "'objective.temperature': expected at least 0.001; got 0."),
        ({"data": {"half": "third"}}, "'data.half': expected 'all', 'first' or 'second'; got 'third'."),
        ({"name": "../escape"}, "'name': expected letters, digits, '.', '_' and '-', not beginning with '.'; got '../escape'."),
        ({"name": ".."}, "'name': expected letters, digits, '.', '_' and '-', not beginning with '.'; got '..'."),
        (
            {"bounding": {"options": {"x": [1]}}},
            "'bounding.options.x': expected a finite number, true, false or a string; got [1].",
        ),
        ({"evaluation": {"tasks": "knn"}}, "'evaluation.tasks': expected a list, such as [1, 2]; got 'knn'."),
        ({"privacy": {"epsilon": datetime.date(2026, 1, 1)}}, "'privacy.epsilon': expected a number; got 2026-01-01."),
    ],
)
def test_what_was_given_and_what_was_expected(tree, said):
    with pytest.raises(UserError) as caught:
        parse_config(tree)
    assert caught.value.sentence == f"config: {said}"
    with pytest.raises(UserError) as caught:  # in a program, too
        Config(**tree)
    assert caught.value.sentence == said


@pytest.mark.parametrize("key", ["cls", "self", "tree", "origin"])
def test_names_of_parameters_are_unknown_keys(key):
    with pytest.raises(UserError, match=f"unknown key '{key}'"):
        parse_config({key: 1})


@pytest.mark.parametrize("tree", ["config.toml", None, 3, [("data", {})], {1: 2}])
def test_what_is_no_configuration_is_refused_in_a_sentence(tree):
    with pytest.raises(UserError, match="config-keys"):
        parse_config(tree)


@given(
    st.sampled_from(
        [("privacy", "epsilon", float), ("privacy", "steps", int), ("data", "public", bool), ("data", "source", str)]
    ),
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
)
@settings(max_examples=200, deadline=None)
def test_no_value_becomes_one_of_another_type(key, value):
    section, name, kind = key
    try:
        config = parse_config({section: {name: value}})
    except UserError:
        return
    assert type(value) is kind or (kind is float and type(value) is int)
    assert getattr(getattr(config, section), name) == kind(value)


@pytest.mark.parametrize(
    "assignment",
    [
        'privacy.epsilon=4\n[model]\nkind="image-text"',
        "privacy.epsilon=4\n",
        'name="a"\ndata.public=true',
        "privacy.epsilon\n=4",
        "privacy\n.epsilon=4",
        "privacy.epsilon=4\r[data]",
        "privacy.epsilon=4 # of eight",
        "privacy.epsilon=4,",
        "privacy.epsilon=4, 5",
        "privacy.epsilon=True",
        "privacy.epsilom=",
        "privcy=",
        "bounding.options.spread_out=",
        "privacy.epsilon.x=",
        "privacy.epsilon",
        "=4",
        "",
        "privacy.epsilon=" + "[" * 5000,
        "privacy.steps=" + "9" * 5000,
    ],
)
def test_an_assignment_of_more_or_less_than_one_value_is_refused(tmp_path, assignment):
    path = tmp_path / "base.toml"
    path.write_text("[privacy]\nepsilon = 8.0\n")
    with pytest.raises(UserError) as caught:
        load_config(path, [assignment])
    assert "\n" not in str(caught.value) and "--set" not in str(caught.value)


@pytest.mark.parametrize(
    "assignments",
    [
        ["privacy.epsilon=4", "privacy.epsilon=8"],
        ["privacy.epsilon=4", "privacy.steps=7", " privacy.epsilon = 8"],
        ["privacy.epsilon=4", "privacy.epsilon="],
        ["privacy.epsilon=4", "privacy={steps=7}"],
    ],
)
def test_no_assignment_swallows_another(tmp_path, assignments):
    path = tmp_path / "base.toml"
    path.write_text("[privacy]\nepsilon = 1.0\n")
    with pytest.raises(UserError, match="setting-twice") as caught:
        load_config(path, assignments)
    assert repr(assignments[0]) in str(caught.value) and repr(assignments[-1]) in str(caught.value)
    assert load_config(path, assignments[:-1]).privacy.epsilon == 4  # as the sentence says
    assert load_config(path, [assignments[0], assignments[0]]).privacy.epsilon == 4
    assert load_config(path, ["privacy={steps=7}", "privacy.epsilon=4"]).privacy.steps == 7


def test_words_that_are_no_toml_are_texts_of_any_sign(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text("")
    for text in ("../some where", "a#b", "s3://bucket/a=b", "it's", "[draft", 'a"b'):
        assert load_config(path, [f"data.stores={text}"]).data.stores == text
    assert load_config(path, ['data.stores="2026"']).data.stores == "2026"
    assert load_config(path, ["privacy={epsilon=4, steps=7}"]).privacy.steps == 7
    with pytest.raises(UserError, match="config-overrides-text"):
        load_config(path, "privacy.epsilon=4")
    with pytest.raises(UserError, match="setting-type"):
        load_config(path, [("privacy.epsilon", 4)])


def test_files_from_all_kinds_of_editors(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf" + b"[privacy]\r\nepsilon = 3.0\r\n")  # a byte order mark, and the line ends of Windows
    assert load_config(path).privacy.epsilon == 3.0
    path.write_text("[privacy]\nepsilon = 3.0\n", encoding="utf-16")
    with pytest.raises(UserError, match="toml-not-utf8"):
        load_config(path)
    for content in ("[" * 10_000, "a = " + "[" * 10_000, "a = " + "9" * 5000, "\0", "a = 1\na = 2", "x" * (1 << 21)):
        path.write_text(content)
        with pytest.raises(UserError, match=re.escape(str(path))) as caught:
            load_config(path)
        assert "\n" not in str(caught.value)
