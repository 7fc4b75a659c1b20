"""What a run starts from: procedural weights are made once, starts are the model of step 0, and the card says what they saw."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.config import parse_config
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import resume, simulate
from dpfed.files.shipped import shipped_file
from dpfed.models.starting import MissingStart
from dpfed.progress import Silent
from dpfed.runs import starts
from dpfed.runs.pretraining import make_start, pretrain
from dpfed.runs.records import with_absolute_paths
from dpfed.runs.resolution import resolve_defaults, resolve_model_defaults
from dpfed.runs.starts import checked_start, procedural_path, recipe_for, starting_weights
from dpfed.training.coordinator import Coordinator
from tests.killed import killed
from tests.sparing import sparing

RECIPE = """name = "start"
data = {source = "procedural", records = 32}
bounding = {method = "none", group_size = 16, engine = "loop"}
privacy = {batch = 16, steps = 3, seed = 0}
optimizer = {learning_rate = 1e-2}
evaluation = {split = "none"}
training = {checkpoint_every = 1}
"""
PRIVATE = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 40, "steps": 3}
NO_PRIVACY = {"batch": 40, "steps": 2, "seed": 1}


class Notes(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture(autouse=True)
def a_short_recipe(monkeypatch, tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    monkeypatch.setattr(starts, "shipped_file", lambda name: file)


@pytest.fixture
def tree(tiny, tmp_path):
    tiny["data"] |= {"stores": str(tmp_path / "stores")}
    tiny["model"] |= {"start": "procedural"}
    tiny["evaluation"] = {"split": "none"}
    return tiny | {"privacy": {**PRIVATE, "seed": 11}}


def begun_elsewhere(tree, place, **privacy):
    """The same run from another start."""
    data = {name: value for name, value in tree["data"].items() if name != "stores"}
    model = {**tree["model"], "start": str(place)}
    return {**tree, "data": data, "model": model, "privacy": {**PRIVATE, "seed": 11, **privacy}}


@pytest.fixture
def private_store(shapes, tmp_path):
    """The records of `shapes`, declared private."""
    with StoreWriter(tmp_path / "private", name="clinic", kind="image-text", size=32) as writer:
        for row in shapes.split("train")[:200].tolist():
            image = shapes.images([row], 32)[0].permute(1, 2, 0).numpy()
            writer.add(RecordInput(f"r{row}", image, tuple(shapes.captions([row])[0])))
    return tmp_path / "private"


def without_privacy(tree):
    return {**tree, "bounding": {"method": "none", "group_size": 8, "engine": "loop"}, "privacy": NO_PRIVACY}


def random_start(tree):
    data = {name: value for name, value in tree["data"].items() if name != "stores"}
    return {**tree, "data": data, "model": {name: value for name, value in tree["model"].items() if name != "start"}}


def test_a_recipe_is_what_the_weights_depend_on(tree):
    config = resolve_model_defaults(parse_config(tree))
    recipe = recipe_for(config)
    assert recipe.bounding.method == "none" and recipe.data.source == "procedural" and recipe.data.size == 16
    assert recipe.views == config.views and recipe.objective == config.objective and recipe.model.width == 8
    place = procedural_path(config)

    def other(section, **values):
        return procedural_path(resolve_model_defaults(parse_config({**tree, section: {**tree[section], **values}})))

    assert other("privacy", batch=50) == other("optimizer", learning_rate=1.0) == other("bounding", clip_norm=0.1) == place
    changed = {other("model", width=16), other("views", crop_scale=[0.1, 1.0]), other("data", size=24), place}
    assert len(changed) == 4 and {one.parent for one in changed} == {place.parent}
    assert other("data", stores="/elsewhere").name == place.name


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_a_start_lies_in_one_place_whatever_computes(tree, monkeypatch, device):
    """With the shipped recipe, which names no device, and before and after a run has chosen one."""
    monkeypatch.setattr(starts, "shipped_file", shipped_file)
    places = set()
    for chosen in (device, "cpu"):
        config = resolve_model_defaults(with_absolute_paths(parse_config({**tree, "training": {"device": chosen}})))
        places.add(procedural_path(config))
    assert len(places) == 1


@pytest.mark.long
def test_a_start_is_made_once_and_is_the_model_of_step_0(tree, tmp_path):
    notes, config = Notes(), parse_config(tree)
    tree["evaluation"] = {"tasks": ["knn"], "records": 50}
    with pytest.raises(MissingStart, match="start-missing"):
        pretrain(config, tmp_path / "run", notes)
    assert not (tmp_path / "run").exists() and not any("engine" in line for line in notes.said)
    make_start(config, notes)
    assert any("training initial weights" in line for line in notes.said)
    run = pretrain(parse_config(tree), tmp_path / "run")
    place, was_there = make_start(config)
    assert was_there and run.config().model.start_digest == json.loads((place / "model" / "model.json").read_text())["sha256"]
    first, start = load_file(run.checkpoints / "step-00000000.safetensors"), load_file(place / "model" / "model.safetensors")
    begun = load_file(place / "checkpoints" / "step-00000000.safetensors")
    moved = [name for name in start if not torch.equal(start[name], begun[f"model/{name}"])]
    assert len(moved) > 10 and all(torch.equal(first[f"model/{name}"], value) for name, value in start.items())

    def before(path):
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return {
            line["evaluation"]["name"]: line["evaluation"]["value"]
            for line in lines
            if line["step"] == 0 and "evaluation" in line
        }

    again = pretrain(parse_config(begun_elsewhere(tree, place)), tmp_path / "again", notes := Notes())
    assert not any("making" in line for line in notes.said)
    assert before(again.path) == before(run.path) and len(before(run.path)) > 1
    assert before(pretrain(parse_config(random_start(tree)), tmp_path / "random").path) != before(run.path)


@pytest.mark.long
def test_an_interrupted_start_goes_on_with_the_same_bits(tree, tmp_path):
    whole, was_there = make_start(parse_config(tree))
    elsewhere = parse_config({**tree, "data": {**tree["data"], "stores": str(tmp_path / "elsewhere")}})
    with killed(Coordinator, "apply", 2):
        make_start(elsewhere)
    with pytest.raises(MissingStart, match="start-unready"):
        starting_weights(resolve_defaults(elsewhere))
    cut, was_there_then = make_start(elsewhere, notes := Notes())
    assert not was_there and not was_there_then and any("resuming" in line for line in notes.said)
    assert (whole / "model" / "model.safetensors").read_bytes() == (cut / "model" / "model.safetensors").read_bytes()


def truncate(place):
    file = place / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


DAMAGE = {
    "weights cut short": truncate,
    "no weights": lambda place: (place / "model" / "model.safetensors").unlink(),
    "no description": lambda place: (place / "model" / "model.json").unlink(),
    "no model": lambda place: shutil.rmtree(place / "model"),
    "no config.toml": lambda place: (place / "config.toml").unlink(),
    "no run at all": lambda place: [shutil.rmtree(place), place.mkdir(), (place / "notes.txt").write_text("mine")],
}


@pytest.mark.long
def test_a_damaged_start_is_refused_and_made_again_once_deleted(tree, tmp_path):
    config = parse_config(tree)
    place, _ = make_start(config)
    whole = (place / "model" / "model.safetensors").read_bytes()
    for damage in DAMAGE.values():
        shutil.copytree(place, tmp_path / "kept")
        damage(place)
        for attempt in (make_start, resolve_defaults, lambda config: pretrain(config, tmp_path / "run")):
            with pytest.raises(UserError, match=f"{place.name} is damaged.*start-damaged"):
                attempt(config)
        assert not (tmp_path / "run").exists()
        shutil.rmtree(place)
        (tmp_path / "kept").rename(place)
    shutil.rmtree(place)
    again, was_there = make_start(config)
    assert not was_there and (again / "model" / "model.safetensors").read_bytes() == whole


def test_an_unfinished_start_without_its_key_is_told_apart_from_a_damaged_one(tree, tmp_path):
    config = parse_config(tree)
    place, _ = make_start(config)
    (place / "results.json").unlink()
    for attempt in (make_start, resolve_defaults, lambda config: pretrain(config, tmp_path / "run")):
        with pytest.raises(UserError, match=f"{place.name} is unfinished, and its key is gone: delete it.*start-stuck"):
            attempt(config)
    shutil.rmtree(place)
    assert make_start(config) == (place, False)


@pytest.mark.long
def test_a_run_goes_on_when_its_deleted_start_is_made_again(tree, tmp_path):
    config = parse_config(tree)
    place, _ = make_start(config)
    with killed(Coordinator, "apply"):
        pretrain(config, tmp_path / "run")
    shutil.rmtree(place)
    for go_on in (lambda: pretrain(config, tmp_path / "run", resume=True), lambda: resume(tmp_path / "run")):
        with pytest.raises(MissingStart, match="start-missing"):
            go_on()
    make_start(RunDirectory.open(tmp_path / "run").config())
    assert pretrain(config, tmp_path / "run", resume=True).finished


@pytest.mark.long
def test_resume_refuses_other_weights_unless_finished(tree, tmp_path):
    place, _ = make_start(parse_config(tree))
    (place / "model").rename(tmp_path / "start")
    tree = begun_elsewhere(tree, tmp_path / "start")
    with killed(Coordinator, "apply"):
        pretrain(parse_config(tree), tmp_path / "run")
    file, description = tmp_path / "start" / "model.safetensors", tmp_path / "start" / "model.json"
    right, (tensors, kept) = file.read_bytes(), (load_file(file), description.read_text())
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, file)
    with pytest.raises(UserError, match="start-changed"):
        resume(tmp_path / "run")
    description.unlink()
    alone = parse_config(begun_elsewhere(tree, file))
    with pytest.raises(UserError, match="model.start.*resume-config-changed"):
        pretrain(alone, tmp_path / "run", resume=True)
    description.write_text(kept.replace(json.loads(kept)["sha256"], "0" * 64))
    with pytest.raises(UserError, match="model-edited"):
        resume(tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_text()
    digest = json.loads(kept)["sha256"]
    (tmp_path / "run" / "config.toml").write_text(config.replace(digest, "0" * 64))
    description.write_text(kept)
    with pytest.raises(UserError, match="start-weights-changed"):
        resume(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(config)
    file.write_bytes(right)
    run = resume(tmp_path / "run")
    (tmp_path / "start").rename(tmp_path / "gone")
    assert resolve_defaults(run.config()).model.start_digest == digest and resume(run.path).finished
    with pytest.raises(MissingStart):
        pretrain(parse_config(tree), tmp_path / "new")


@pytest.mark.long
def test_a_private_start_is_on_the_card_and_its_budget_adds_up(tree, private_store, tmp_path):
    tree = random_start(tree) | {"privacy": PRIVATE}
    tree["data"] = {**tree["data"], "path": str(private_store)}
    first = pretrain(parse_config(tree), tmp_path / "first")
    second = pretrain(parse_config(begun_elsewhere(tree, first.path, seed=None, steps=2)), tmp_path / "second")
    third = pretrain(parse_config(begun_elsewhere(tree, second.model, seed=None, steps=2)), tmp_path / "third")
    card, ids = third.card.read_text(), [run.identity[:16] for run in (first, second)]
    marks = [line for line in card.splitlines() if line.startswith("**Mark:**")]
    assert [[id in line and "epsilons add up" in line for id in ids] for line in marks] == [[True, False], [False, True]]
    assert "The starting weights: the guarantee does not cover" in card and "no guarantee" not in card.splitlines()[0]
    (second.model / "model.safetensors").rename(tmp_path / "alone.safetensors")
    alone = pretrain(parse_config(begun_elsewhere(tree, tmp_path / "alone.safetensors", seed=None)), tmp_path / "fourth")
    assert "not known: the file does not say" in alone.card.read_text()
    assert "The starting weights: the guarantee does not cover" in alone.card.read_text()


@pytest.mark.long
def test_a_start_that_would_give_private_records_away_is_refused(tree, private_store, shapes, tmp_path):
    tree = without_privacy(random_start(tree))
    public = pretrain(parse_config(tree), tmp_path / "public")
    grouped = {"engine": "loop", "group_size": 4}
    checked_start(parse_config({**begun_elsewhere(tree, public.path), "bounding": grouped}))
    tree["data"] = {**tree["data"], "path": str(private_store)}
    private = pretrain(parse_config(tree), tmp_path / "private-run")
    for place in (private.path, private.model, private.model / "model.safetensors"):
        config = parse_config({**begun_elsewhere(tree, place), "bounding": grouped})
        with pytest.raises(UserError, match="'clinic'.*start-unprotected"):
            pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize("trust", sparing(["central", "secure"], "secure"))
def test_a_simulated_federation_starts_there_too(tree, tmp_path, trust):
    place, _ = make_start(parse_config(tree))
    run = simulate(parse_config(tree), tmp_path / "run", Simulation(sites=3, trust=trust))
    first, start = load_file(run.checkpoints / "step-00000000.safetensors"), load_file(place / "model" / "model.safetensors")
    assert all(torch.equal(first[f"model/{name}"], value) for name, value in start.items())
    agreed = json.loads(run.terms.read_text())["config"]["model"]
    assert (agreed["start"], agreed["start_digest"]) == ("procedural", run.config().model.start_digest)
