"""Mistakes that are known before a record is read are answered before one is, and before torch is imported."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import parse_config
from dpfed.data import opening
from dpfed.data.store.counting import known_count
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.runs.preflight import Preflight, guarded, known_plan
from dpfed.runs.pretraining import pretrain
from tests.patience import run_to_end, strain

GOOD = {"epsilon": 8.0, "batch": 60, "steps": 4}
IMPOSSIBLE = [
    {"epsilon": None},
    {"epsilon": -1.0},
    {"epsilon": 1e9},
    {"noise_multiplier": 1.0},
    {"batch": 601},
    {"batch": 0},
    {"steps": 0},
    {"steps": 10**9},
    {"delta": 0.5},
    {"delta": 1e-300},
    {"unit": "user"},
    {"epsilon": None, "noise_multiplier": 0.5, "steps": 10**7},
]


@pytest.fixture
def nothing_is_opened(monkeypatch):
    def opened(*_, **__):
        raise AssertionError("records were opened")

    for name in ("shapes_store", "_from_path"):
        monkeypatch.setattr(opening, name, opened)


def config_of(tree, **privacy):
    return parse_config({**tree, "privacy": {name: value for name, value in {**GOOD, **privacy}.items() if value is not None}})


@pytest.mark.parametrize("wrong", IMPOSSIBLE)
@pytest.mark.parametrize("generated", [True, False])
def test_an_impossible_plan_is_refused_before_a_record_is_opened(tiny, tmp_path, nothing_is_opened, wrong, generated):
    if generated:
        tiny["data"] = {"records": 600, "stores": str(tmp_path / "stores")}
    with pytest.raises(UserError):
        pretrain(config_of(tiny, **wrong), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def places(folder: Path):
    (folder / "file").touch()
    (folder / "used").mkdir()
    (folder / "used" / "thing").touch()
    (folder / "dangling").symlink_to(folder / "nowhere")
    yield from ("file", "file/run", "used", "dangling", "a" * 300, "a" * 250, f"new/{'a' * 300}/run", "x\0y")
    yield from ("/proc/run", "/proc/1/a/b", "/dev/null", "/dev/null/run")


def test_a_place_that_takes_no_run_is_refused_and_left_as_it_was(tmp_path, tiny_config, nothing_is_opened):
    names = list(places(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    for name in names:
        with pytest.raises(UserError, match="run-folder-unusable|run-in-use|path-too-long|path-not-utf8"):
            Preflight.of(tiny_config, tmp_path / name)
        with pytest.raises(UserError, match="run-folder-unusable|run-in-use|path-too-long|path-not-utf8"):
            pretrain(tiny_config, tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_number_of_records_is_the_stores(shapes, tiny_config):
    assert known_count(tiny_config.data, tiny_config.privacy.unit) == shapes.training_records
    assert known_plan(tiny_config).sampling.records == 600


def test_an_import_of_too_few_records_ends_early(tiny_config):
    seen = []
    advance = guarded(lambda *at: seen.append(at), tiny_config)
    with pytest.raises(UserError, match="batch must lie in 2..59"):
        advance(0, 59)
    assert not seen
    guarded(lambda *at: seen.append(at), tiny_config)(0, 60)
    assert seen == [(0, 60)]


def test_more_sites_or_workers_than_groups_are_refused(tiny_config, nothing_is_opened):
    with pytest.raises(UserError, match="use at most 15 .*run-workers-many"):
        known_plan(tiny_config, world_size=16)


@pytest.fixture
def squares(tmp_path_factory):
    """A store of squares of 48 pixels, without classes."""
    folder = tmp_path_factory.mktemp("records") / "squares"
    with StoreWriter(folder, name="clinic", kind="image", size=48) as writer:
        for number in range(600):
            split = "test" if number < 50 else "train"
            writer.add(RecordInput(f"r{number}", np.full((48, 48, 3), number % 256, np.uint8), split=split))
    return folder


def test_larger_squares_than_the_default_are_not_shrunk_unasked(squares):
    tree = {"data": {"source": "store", "path": str(squares)}, "privacy": GOOD, "bounding": {"group_size": 4}}
    with pytest.raises(UserError, match="squares of 48 .* set data.size = 48.*run-images-large"):
        known_plan(parse_config(tree))
    for size in (32, 48):
        assert known_plan(parse_config({**tree, "data": {**tree["data"], "size": size}})).sampling.records == 550


def test_an_impossible_task_is_refused_with_advice_that_works(squares):
    tree = {"data": {"source": "store", "path": str(squares), "size": 32}, "privacy": GOOD, "bounding": {"group_size": 4}}
    with pytest.raises(UserError, match="names 'knn', but no label of clinic is given in both .*: leave evaluation.tasks out"):
        known_plan(parse_config({**tree, "evaluation": {"tasks": ["knn"]}}))
    assert known_plan(parse_config({**tree, "evaluation": {"tasks": []}})).sampling.records == 550
    with pytest.raises(
        UserError, match="'validation' split of clinic is empty.*evaluation.split = 'none' without evaluation.tasks"
    ):
        known_plan(parse_config({**tree, "evaluation": {"tasks": ["knn"], "split": "validation"}}))
    assert known_plan(parse_config({**tree, "evaluation": {"split": "none"}})).sampling.records == 550


@pytest.mark.parametrize("command", [["pretrain", "--run", "run"], ["forecast"], ["rehearse"]])
def test_every_command_names_the_split_that_has_records(squares, dpfed, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    evaluation = {"split": "validation"}
    data = {"source": "store", "path": str(squares), "size": 32}
    tree = {"data": data, "privacy": GOOD, "bounding": {"group_size": 4}, "evaluation": evaluation}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(tree))
    code, _, error = dpfed(command[0], "run.toml", *command[1:])
    assert code == 2 and "set evaluation.split = 'test', which has 50 records" in " ".join(error.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


FEW = [
    ({"bounding": {"group_size": 2}}, "bounding.group_size to 3 or more"),
    ({"bounding": {"method": "public"}, "public": {"records": 1}}, "public.records to 2 or more"),
]


@pytest.mark.parametrize(("changes", "said"), FEW)
def test_a_loss_that_learns_nothing_from_two_records_is_refused(tiny, public_store, changes, said):
    tree = {**tiny, **changes, "objective": {"name": "barlow_twins"}, "privacy": GOOD}
    if "public" in tree:
        tree["public"] = {**tree["public"], "path": str(public_store.path)}
    with pytest.raises(UserError, match=f"from 2 records at a time: set {said}.*run-contrast-few"):
        known_plan(parse_config(tree))
    known_plan(parse_config({**tree, "objective": {"name": "infonce"}}))


IN_ONE_PROCESS = """
import io, json, sys, time
from contextlib import redirect_stderr, redirect_stdout
sys.modules["torch"] = None  # an import of it would be an error
from dpfed.cli import main
for words in json.loads(sys.stdin.read()):
    sys.argv, said, began = ["dpfed", *words], io.StringIO(), time.monotonic()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    print(json.dumps([code, said.getvalue().splitlines(), time.monotonic() - began]))
"""


@pytest.mark.long
def test_no_torch_is_imported_and_the_answer_comes_soon(tmp_path, squares):
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "wrong.toml").write_text("[privacy]\nepsilon = -1.0\n")
    commands = [
        ["pretrain", "empty.toml"],
        ["pretrain", "wrong.toml", "--json"],
        ["pretrain", "empty.toml", "--set", "privacy.epsilon=8", "--run", "/proc/run"],
        ["pretrain", "empty.toml", "--set", "privacy.epsilon=8", "--federated", "3", "--drops", "3"],
        ["pretrain", "empty.toml", "--set", "privacy.epsilon=8", "--cluster", "ray", "--workers", "1000000"],
        ["privacy", "calibrate", "--records", "60000", "--batch", "2048", "--steps", "1200", "--epsilon", "nan"],
        ["pretrain", "quickstart", "--set", "data.source=folder", "--set", "data.path=nowhere", "--run", "run"],
        ["pretrain", "quickstart", "--set", "data.source=scenes", "--run", "run"],
        ["pretrain", "quickstart", "--set", "data.source=eurosat", "--set", "data.path=.", "--run", "run"],
        ["resume", "nowhere"],
        ["pretrain", "quickstart", "--set", "model.start=nowhere", "--run", "run"],
        ["start", "quickstart", "--set", "model.widht=16"],
        ["start", "recipes/adaptation"],
        ["pretrain", "recipes/small-images", "--set", f"data.path={squares}", "--run", "run"],
        ["site", "setup", "nowhere", "--coordinator", "x", "--store", "nowhere"],
        ["site", "join", "nowhere", "empty.toml"],
        ["site", "serve", "nowhere"],
        ["site", "doctor", "nowhere"],
        ["start", "cuhk-pedes", "--set", "model.architecture=local-dir:x", "--set", "model.weights="],
    ]
    command = [sys.executable, "-c", IN_ONE_PROCESS]
    done = run_to_end(command, input=json.dumps(commands), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    for words, answer in zip(commands, done.stdout.splitlines(), strict=True):
        code, said, seconds = json.loads(answer)
        assert code == 2 and [line.startswith("error: ") for line in said] == [False] * (len(said) - 1) + [True], (words, said)
        assert "Traceback" not in "".join(said)
        assert seconds < 10 * strain(), words  # a tenth of a second on an idle machine
    assert {path.name for path in tmp_path.iterdir()} == {"empty.toml", "wrong.toml"}


DEMO = [
    (("--trust", "secret"), "Invalid value for '--trust'"),
    (("--drops", "1"), "option-trust-unused"),
    (("--trust", "secure", "--drops", "3"), "trust-drops"),
    (("--skew", "2"), "option-federated-wrong"),
    (("--deadline", "-1"), "Invalid value for '--deadline'"),
    (("--set", "bounding.group_size=200"), "plan-impossible"),
]


@pytest.mark.parametrize(("options", "said"), DEMO)
def test_a_demo_refuses_its_options_before_it_makes_a_folder(dpfed, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    tree = {"data": {"source": "shapes", "records": 200}, "privacy": {"epsilon": 8.0, "batch": 40, "steps": 2}}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(tree))
    code, out, error = dpfed("federation", "demo", "run.toml", "--run", "run", *options)
    assert code == 2 and said in " ".join(error.split()) and "PyTorch" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


PLACES = [("store", "it is a record store"), ("notes", "give a folder that `dpfed pretrain` has made")]


@pytest.mark.parametrize("command", [("privacy", "ledger"), ("budget", "settle"), ("resume",), ("evaluate",)])
@pytest.mark.parametrize(("place", "said"), PLACES)
def test_nobody_is_sent_to_start_a_run_where_none_can_go(squares, dpfed, tmp_path, place, said, command):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("")
    code, _, error = dpfed(*command, squares if place == "store" else tmp_path / "notes")
    assert code == 2 and said in " ".join(error.split()) and "starts a run" not in error


def test_an_empty_folder_takes_the_run_that_the_sentence_offers(squares, dpfed, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, error = dpfed("resume", tmp_path / "empty")
    assert code == 2 and f"`dpfed pretrain CONFIG --run {tmp_path / 'empty'}` starts a run" in " ".join(error.split())
    assert RunDirectory.unused(tmp_path / "empty")
