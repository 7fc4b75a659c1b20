"""`dpfed pretrain --data`: a data set and an epsilon are enough, and no pixel shapes a choice."""

import dataclasses
import json
import re
import shutil

import pytest

import dpfed as library
from dpfed.artifacts.directory import RunDirectory
from dpfed.automatic import choosing, pace
from dpfed.automatic.choosing import choose
from dpfed.automatic.request import Request
from dpfed.automatic.running import pretrain
from dpfed.config import load_config
from dpfed.errors import UserError
from dpfed.runs import public_basis
from tests.automatic.random_pictures import pictures
from tests.frozen_towers import image_weights, text_folder

_SMALL = ("model.start=", "model.width=4", "privacy.steps=2", "evaluation.tasks=['knn']", "bounding.method=group")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return pictures(tmp_path / "photos", 0)


def small(data, epsilon=8.0, **options):
    return Request(data, epsilon, assignments=_SMALL, **options)


@pytest.mark.long
def test_pixels_decide_nothing(photos, tmp_path):
    other = pictures(tmp_path / "others", 1)
    chosen = [choose(small(data)) for data in (photos, other)]
    trees = [one.config.model_dump(exclude={"name": ..., "data": {"path"}}) for one in chosen]
    assert trees[0] == trees[1]
    assert chosen[0].plan == chosen[1].plan
    assert [choice.why for choice in chosen[0].choices[1:]] == [choice.why for choice in chosen[1].choices[1:]]


@pytest.mark.long
def test_one_line_trains_and_the_same_line_finds_it_again(photos):
    line = {"data": "photos", "epsilon": 8, "out": "runs/mine", "overrides": _SMALL}
    run = library.pretrain(**line)
    assert run.finished
    assert run.epsilon <= 8
    assert library.pretrain(**line).path == library.pretrain(**line, resume=True).path == run.path
    with pytest.raises(UserError, match="run-in-use"):
        library.pretrain(**line, resume=False)
    text = (run.path / "config.toml").read_text()
    assert "# method: group; given" in text
    assert re.search(r"# held out: 20 records; one record in 6", text)
    for changed, said in (
        ({"epsilon": 1}, "epsilon = 8.0, but this request has 1"),
        ({"model": "resnet18"}, "model.image = cnn, but this request has resnet18"),
        ({"steps": 3, "overrides": ("model.start=",)}, "steps = 2, but this request has 3"),
        ({"overrides": ("model.width=8",)}, "model.width = 4, but this request has 8"),
        ({"data": "others"}, "data = "),
    ):
        with pytest.raises(UserError, match=said):
            library.pretrain(**{**line, **changed})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"delta": 1e-5}, "delta"),
        ({"model": "resnet18"}, "model.image"),
        ({"steps": 3, "overrides": [one for one in _SMALL if "steps" not in one]}, "steps"),
        ({"overrides": [*_SMALL, "views.flip=0.1"]}, "views.flip"),
        ({"overrides": [*_SMALL, "model.start=procedural"][1:]}, "model.start"),
    ],
    ids=["delta", "model", "steps", "another key", "start"],
)
def test_another_run_is_not_handed_out_as_the_one_asked_for(photos, more, named):
    line = {"data": "photos", "epsilon": 8, "out": "runs/mine", "overrides": _SMALL}
    library.pretrain(**line)
    with pytest.raises(UserError, match=f"holds a run with {named} = "):
        library.pretrain(**{**line, **more})


@pytest.mark.long
def test_the_same_line_is_the_same_however_it_is_written(photos, tmp_path):
    (tmp_path / "link").symlink_to(photos)
    said = [*_SMALL, "training.device=auto", "data.size=", "data.stores=stores"]
    line = {"data": "link", "epsilon": 8, "out": "runs/mine", "overrides": said, "model": "cnn", "minutes": 3}
    assert library.pretrain(**line).path == library.pretrain(**{**line, "data": photos, "minutes": 4}).path


@pytest.mark.long
def test_a_run_is_a_model_for_private_moments(photos):
    library.pretrain(data="photos", epsilon=8, out="runs/first", overrides=_SMALL)
    chosen = choose(Request("photos", 8.0, model="runs/first"))
    assert chosen.config.bounding.method == "moments"
    assert chosen.config.model.start == str(RunDirectory.open("runs/first").path.resolve())


def test_an_interrupted_run_is_resumed_by_the_same_line(photos):
    class Stop(library.Callback):
        def on_step(self, summary):
            raise KeyboardInterrupt

    line = {"data": "photos", "epsilon": 8, "out": "runs/mine", "overrides": _SMALL}
    with pytest.raises(KeyboardInterrupt):
        library.pretrain(**line, callbacks=[Stop()])
    assert not RunDirectory.open("runs/mine").finished
    assert library.pretrain(**line).finished


def test_a_dry_run_says_everything_and_leaves_no_run(photos, tmp_path, dpfed):
    words = ["--data", "photos", "--epsilon", "8", *(word for one in _SMALL for word in ("--set", one))]
    code, said, _ = dpfed("pretrain", *words, "--dry-run")
    assert code == 0
    for topic in ("held out", "images", "model", "method", "plan", "promise", "time", "expect"):
        assert topic in said
    assert not (tmp_path / "runs").exists()
    facts = json.loads(dpfed("pretrain", *words, "--dry-run", "--json")[1])
    assert facts["epsilon"] == 8
    assert facts["records"] == 100
    assert facts["config"]["model"]["width"] == 4


def test_saved_choices_are_the_same_configuration(photos, dpfed):
    words = ["--data", "photos", "--epsilon", "8", *(word for one in _SMALL for word in ("--set", one))]
    assert dpfed("pretrain", *words, "--save-config", "mine.toml")[0] == 0
    assert load_config("mine.toml") == choose(small(photos)).config
    code, _, error = dpfed("pretrain", *words, "--save-config", "mine.toml")
    assert code == 2
    assert "exists: choose another file" in error


@pytest.mark.long
def test_too_little_time_is_refused_and_a_little_makes_the_run_shorter(photos, monkeypatch):
    monkeypatch.setattr(choosing, "seconds_of", lambda config, *_: 0.1 * config.privacy.steps * config.privacy.batch)
    with pytest.raises(UserError, match="Allow more time"):
        choose(Request(photos, 8.0, minutes=1e-6, assignments=_SMALL))
    free = ("model.start=", "model.width=4", "bounding.method=group", "privacy.batch=80")
    whole = choose(Request(photos, 8.0, assignments=free))
    short = choose(Request(photos, 8.0, minutes=whole.seconds / 60 / 2, assignments=free))
    assert whole.config.privacy.steps == 100
    assert short.config.privacy.steps == 50
    assert "measured with random images" in next(choice.why for choice in short.choices if choice.topic == "plan")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epsilon", "8"], "expected a configuration"),
        (["--data", "photos"], "needs --epsilon, too: --epsilon 8"),
        (["quickstart", "--data", "photos", "--epsilon", "8"], "give either --data or the configuration quickstart"),
        (["quickstart", "--steps", "8"], "write --set privacy.steps=8"),
        (["quickstart", "--dry-run"], "--dry-run is for --data"),
        (["quickstart", "--epsilon", "0"], "write --set privacy.epsilon=0"),
        (["quickstart", "--minutes", "0"], "--minutes is for --data"),
        (["quickstart", "--model", ""], "--model is for --data"),
        (["--data", "photos", "--epsilon", "8", "--set", "privacy.epsilon=4"], "give one key two values"),
        (["--data", "photos", "--epsilon", "8", "--set", "data.path=x"], "leave data.path out"),
        (["--data", "nowhere", "--epsilon", "8"], "there is nothing at"),
        (["--data", "photos", "--epsilon", "8", "--method", "magic"], "expected one of batch"),
        (["--data", "photos", "--epsilon", "8", "--model", "magic"], "expected timm/NAME"),
        (["--data", "photos", "--epsilon", "8", "--cluster", "torchrun"], "--save-config FILE"),
    ],
)
def test_what_does_not_fit_is_one_sentence(photos, tmp_path, dpfed, words, said):
    code, _, error = dpfed("pretrain", *words)
    assert code == 2
    assert said in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        "--epsilon 0",
        "--epsilon nan",
        "--epsilon 8 --delta 1",
        "--epsilon 8 --minutes nan",
        "--epsilon 8 --minutes inf",
        "--epsilon 8 --minutes -5",
        "--epsilon 8 --batch 0",
        "--epsilon 8 --steps -1",
        "--epsilon 8 --set privacy.sttps=3",
        "--epsilon 8 --save-config nowhere/mine.toml",
        "--epsilon 8 --save-config photos",
    ],
)
def test_what_no_data_set_allows_is_refused_before_the_import(photos, tmp_path, dpfed, words):
    code, _, error = dpfed("pretrain", "--data", "photos", *words.split())
    assert code == 2
    assert re.search(r"(expected a|did you mean 'steps'|there is no folder|exists: choose)", error)
    assert not (tmp_path / "stores").exists()


def test_a_file_too_many_is_left_out_by_a_command_that_there_is(photos, dpfed):
    (photos / "cat" / "notes.txt").write_text("a cat")
    code, _, error = dpfed("pretrain", "--data", "photos", "--epsilon", "8")
    assert code == 2
    assert "STORE --skip-broken" in error
    assert "then use --data STORE" in error


def test_few_records_are_refused_before_anything_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "two", 0, count=2)
    with pytest.raises(UserError, match="has 2 records"):
        choose(Request("two", 8.0))
    assert not (tmp_path / "stores").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({}, "expected a configuration"),
        ({"data": "photos", "out": "runs/a"}, "needs an epsilon"),
        ({"data": "photos", "epsilon": 8}, "the run's folder is missing"),
        ({"data": "photos", "epsilon": 8, "out": "a", "folder": "b"}, "give one of them"),
        ({"config": "quickstart", "out": "a", "epsilon": 8}, "epsilon= needs data"),
        ({"config": "quickstart", "out": "a", "data": "photos", "epsilon": 8}, "give either data or a configuration"),
    ],
    ids=["nothing", "no epsilon", "no folder", "two folders", "epsilon of a configuration", "both"],
)
def test_a_call_that_does_not_fit_is_one_sentence(photos, call, said):
    with pytest.raises(UserError, match=said):
        library.pretrain(**{"out": "a", **call} if not call else call)


def test_two_given_towers_get_moments_and_a_time_without_a_basis(shapes, tmp_path):
    towers = (f"model.weights={image_weights(tmp_path)}", f"model.text={text_folder(tmp_path)}", "data.size=16")
    chosen = choose(Request(shapes.path, 8.0, model="timm/test_resnet", assignments=towers))
    assert chosen.config.bounding.method == "moments"
    assert chosen.seconds > 0
    assert chosen.expectation.figure == "R@10"
    assert not list(tmp_path.rglob("bases")) and not (shapes.path.parent / "bases").exists()


@pytest.mark.long
def test_features_that_are_kept_take_no_time_again(shapes, tmp_path, monkeypatch):
    shutil.copytree(shapes.path, tmp_path / "store")
    towers = [f"model.weights={image_weights(tmp_path)}", f"model.text={text_folder(tmp_path)}", "data.size=16"]
    towers = (*towers, f"data.stores={tmp_path}")
    monkeypatch.setattr(pace, "_seconds_of_features", lambda parts: 1.0)
    monkeypatch.setattr(public_basis, "GENERATED", 120)
    request = Request(
        tmp_path / "store", 8.0, model="timm/test_resnet", assignments=(*towers, f"data.stores={tmp_path}"), minutes=99
    )
    first = choose(request).seconds
    pretrain(request, tmp_path / "run")
    assert (first, choose(request).seconds) == (800 + pace.GENERATED, 0)
    request = dataclasses.replace(request, assignments=(*request.assignments, "bounding.options.layers=last"))
    assert choose(request).seconds == first  # of another layer, whose basis nobody made


def test_the_model_of_a_finished_run_is_the_start(photos):
    line = {"data": "photos", "epsilon": 8, "overrides": _SMALL}
    first = library.pretrain(**line, out="runs/first")
    chosen = choose(Request("photos", 8.0, model=str(first.path), assignments=("evaluation.tasks=['knn']",)))
    assert chosen.config.bounding.method == "moments"
    assert chosen.config.model.start == str(first.path.resolve())
    assert chosen.config.model.width == 4
