"""Features that stay beside a record store: computed once for all runs of their owner, who alone reads and deletes them."""

import errno
import multiprocessing
import os
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dpfed.artifacts.directory import RunDirectory
from dpfed.cli import app
from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.features import cache, extraction
from dpfed.features.cache import Features, Shard
from dpfed.features.extraction import FeatureCache
from dpfed.features.kept import _refuse_open, claimed_features, forget
from dpfed.files.locking import file_lock
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from tests.frozen_towers import frozen


@pytest.fixture
def tree(tiny, shapes, tmp_path):
    """A run with frozen towers over a store of its own."""
    shutil.copytree(shapes.path, tmp_path / "store")
    (tmp_path / "weights").mkdir()
    tree = frozen(tiny, tmp_path / "weights", cached=1)
    return {**tree, "data": {**tree["data"], "path": str(tmp_path / "store")}}


@pytest.fixture
def computed(monkeypatch):
    """How many records were embedded, a number for each shard."""
    counts, real = [], extraction._Extraction.__call__
    count = lambda self, rows, progress: counts.append(len(rows)) or real(self, rows, progress)  # noqa: E731
    monkeypatch.setattr(extraction._Extraction, "__call__", count)
    return counts


class Notes(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def parts_of(tree):
    return build(parse_config(tree), Randomness.from_seed(5))


def kept(parts, rows=None, folder=None, progress=None, count=0):
    rows = parts.store.split("train")[:50] if rows is None else rows
    of = FeatureCache(folder, progress or Silent(), stay=True)
    return of.features(parts.model, parts.views, parts.store, rows, count)


def shards(place):
    return sorted(place.rglob("*.safetensors"))


@pytest.mark.long
def test_the_second_run_computes_nothing(tree, tmp_path, computed):
    for number, epsilon in enumerate((8.0, 1.0)):
        tree["privacy"]["epsilon"] = epsilon
        run = pretrain(parse_config(tree), tmp_path / f"run{number}")
        assert not run.features.exists() and "`STORE.features/`, until somebody deletes" in run.card.read_text()
    assert computed == [100, 600]  # held-out records, which the run measures, and its own
    place = tmp_path / "store.features"
    assert len(shards(place)) == 2 and stat.S_IMODE(place.stat().st_mode) == 0o700
    for path in place.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.is_file() else 0o700)
    assert sorted(os.listdir(tmp_path / "store")) == ["index.arrow", "records.arrow", "store.json"]


@pytest.mark.long
def test_a_run_from_kept_features_is_the_same_run(tree, tmp_path, computed):
    tree["privacy"]["seed"] = 3
    runs = [pretrain(parse_config(tree), tmp_path / name) for name in ("computes", "reads")]
    tree["data"]["keep_features"] = False
    runs.append(pretrain(parse_config(tree), tmp_path / "alone"))
    weights = [(run.model / "head.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1] == weights[2] and computed == [100, 600, 100, 600]


@pytest.mark.long
def test_switched_off_they_go_with_the_run(tree, tmp_path, monkeypatch):
    seen, real = [], RunDirectory.delete_secrets
    monkeypatch.setattr(RunDirectory, "delete_secrets", lambda run: seen.extend(shards(run.features)) or real(run))
    tree["data"]["keep_features"] = False
    run = pretrain(parse_config(tree), tmp_path / "run")
    assert len(seen) == 2 and not run.features.exists() and not (tmp_path / "store.features").exists()
    assert "`features/` in the run's folder" in run.card.read_text()


class Swapped:
    """A tokenizer that writes other numbers."""

    def __init__(self, real):
        self.real, self.vocabulary, self.context = real, real.vocabulary, real.context

    def __call__(self, texts):
        return self.real([text[1:] for text in texts])


def changed_in(parts, what):
    """Views in which one thing is another."""
    if what == "tokenizer":
        return replace(parts.views, tokenizer=Swapped(parts.views.tokenizer))
    if what == "resize":
        return replace(parts.views, preprocessing=replace(parts.views.preprocessing, resize="pad"))
    return parts.views


@pytest.mark.parametrize("what", ["weights", "activation", "tokenizer", "resize", "records", "contents", "views", "program"])
def test_whatever_changes_they_are_computed_again(what, tree, tmp_path, computed, monkeypatch):
    parts = parts_of(tree)
    rows = parts.store.split("train")[:50]
    kept(parts), kept(parts)
    assert computed == [50]
    if what == "weights":
        next(parts.model.image_encoder.buffers()).add_(1)
    if what == "activation":  # which no weight tells
        parts.model.image_encoder.register_forward_hook(lambda module, given, made: made * 1.1)
    if what == "contents":
        parts.store.contents = "0" * 32
    if what == "program":
        monkeypatch.setattr(extraction, "__version__", "0.0.1")
    parts = parts.with_learner(views=replace(parts.learner.views, whole=changed_in(parts, what)))
    rows = rows[:40] if what == "records" else rows
    kept(parts, rows, count=1 if what == "views" else 0)
    assert computed == [50, len(rows)] and len(shards(tmp_path / "store.features")) == 2


@pytest.mark.parametrize("harm", ["cut", "one bit", "another shard"])
def test_a_damaged_shard_is_computed_again(harm, tree, tmp_path, computed, monkeypatch):
    monkeypatch.setattr(cache, "SHARD", 20)
    parts = parts_of(tree)
    before = torch.cat([shard.image for shard in kept(parts).shards()])
    first, second, last = shards(tmp_path / "store.features")
    content = bytearray(second.read_bytes())
    content[-3] ^= 1
    harmed = {"cut": content[:-5], "one bit": content, "another shard": last.read_bytes()}[harm]
    second.write_bytes(harmed)
    after = torch.cat([shard.image for shard in kept(parts).shards()])
    assert computed == [20, 20, 10, 20] and torch.equal(before, after)


@pytest.mark.parametrize("why", ["read-only", "open to others", "a link", "full"])
def test_where_they_cannot_stay_they_serve_the_run(why, tree, tmp_path, monkeypatch):
    parts, notes, place = parts_of(tree), Notes(), tmp_path / "store.features"
    if why == "read-only":
        refuse = lambda path, *_, **__: (_ for _ in ()).throw(PermissionError(errno.EACCES, "Permission denied", str(path)))  # noqa: E731
        monkeypatch.setattr("dpfed.features.kept.Path.touch", refuse)
    if why == "open to others":
        place.mkdir(mode=0o755)
    if why == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    if why == "full":
        real = cache.write_atomically

        def full(path, *rest, **options):
            if place in path.parents:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            real(path, *rest, **options)

        monkeypatch.setattr(cache, "write_atomically", full)
    features = kept(parts, folder=tmp_path / "run", progress=notes)
    assert len(features) == 50 and len(shards(tmp_path / "run")) == 1 and not shards(place)
    assert sum("cannot be kept beside the store" in said for said in notes.said) == 1


def test_features_that_were_read_outlive_their_deletion(tree, tmp_path):
    features = kept(parts_of(tree))
    with features:
        pass
    assert shards(tmp_path / "store.features"), "a run deletes none that stay"
    before = features.images(np.arange(9), np.zeros((9, 1), int))
    assert forget(tmp_path / "store") > 0 and not (tmp_path / "store.features").exists()
    assert torch.equal(features.images(np.arange(9), np.zeros((9, 1), int)), before)
    assert forget(tmp_path / "store") == 0


def test_one_command_deletes_them_and_no_store(tmp_path):
    place = tmp_path / "mine.features"
    with claimed_features(place, "a" * 32, print) as folder:
        Features(folder, np.arange(3), stay=True).complete(lambda rows, _: Shard(torch.ones(3, 1, 4)), lambda _: None)
    command = ["data", "forget", str(tmp_path / "mine")]
    with file_lock(place / f"{'a' * 32}.lock", ""):
        refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, UserError) and "a run is computing the features" in str(refused.exception)
    assert shards(place)
    done = CliRunner().invoke(app, command)
    assert "mine.features: " in done.output.replace("\n", "") and not place.exists()
    nothing = CliRunner().invoke(app, command)  # neither a store nor features: a path that is misspelt
    assert isinstance(nothing.exception, UserError) and nothing.exception.code == "forget-nothing-there"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "store.json").write_text("{}")
    assert "no features are kept" in CliRunner().invoke(app, command).output
    place.write_text("not a folder")
    with pytest.raises(UserError, match="forget-no-folder"):
        forget(tmp_path / "mine")


def compute(place, log, key):
    """What each of two processes does: slowly, a shard at a time."""
    cache.SHARD = 5

    def slowly(rows, progress):
        with open(log, "a") as file:
            file.write(f"{rows[0]}\n")
        time.sleep(0.3)
        return Shard(torch.from_numpy(rows).float()[:, None, None])

    with claimed_features(Path(place), key, lambda text: None) as folder:
        features = Features(folder, np.arange(20), stay=True)
        features.complete(slowly, lambda _: None)
    values = torch.cat([shard.image for shard in features.shards()]).flatten()
    assert torch.equal(values, torch.arange(20).float())


@pytest.mark.long
@pytest.mark.parametrize(("keys", "times"), [("aa", 1), ("ab", 2)])
def test_two_processes_at_once_compute_each_shard_once(keys, times, tmp_path):
    context, log = multiprocessing.get_context("spawn"), tmp_path / "log"
    workers = [context.Process(target=compute, args=(str(tmp_path / "s.features"), str(log), key)) for key in keys]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(map(int, log.read_text().split())) == sorted([0, 5, 10, 15] * times)


def test_a_place_that_others_can_read_is_refused_with_its_mode(tmp_path):
    (place := tmp_path / "a b").mkdir(mode=0o700)
    _refuse_open(place)
    place.chmod(0o750)
    with pytest.raises(UserError, match=r"has mode 0750: `chmod 700 '.*a b'`.*\[features-place"):
        _refuse_open(place)
    (file := tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"is not a folder: move it away.*\[features-place"):
        _refuse_open(file)


@pytest.mark.long
def test_what_a_file_system_leaves_is_not_taken_for_a_shard(tree, tmp_path):
    parts = parts_of(tree)
    rows = parts.store.split("train")[:10]
    kept(parts, rows)
    (shard,) = shards(tmp_path / "store.features")
    for name, is_kept in ((shard.name, True), (f"._{shard.name}", False)):
        shard = shard.rename(shard.with_name(name))
        assert FeatureCache(None, Silent(), stay=True).has(parts.model, parts.views, parts.store, rows) == is_kept


def test_what_a_file_system_leaves_stays_when_features_go(tmp_path):
    place = tmp_path / "mine.features"
    with claimed_features(place, "a" * 32, print) as folder:
        folder.mkdir()
        (folder / "000000.safetensors").write_bytes(b"some")
    others = [place / ".DS_Store", place / ".snapshot"]
    others[0].touch()
    others[1].mkdir()
    for size in (4, 0):
        assert forget(tmp_path / "mine") == size and sorted(place.iterdir()) == others


def test_a_file_at_the_place_of_features_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "mine.features").write_text("not a folder")
    with pytest.raises(UserError, match="is not a folder: move it away.*features-place"):
        with claimed_features(tmp_path / "mine.features", "a" * 32, print):
            pass
