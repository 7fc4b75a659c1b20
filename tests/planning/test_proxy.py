"""Public records stand in for private ones: which may, and that no private record is read."""

import os

import numpy as np
import pytest
import tomli_w

from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.record import RecordInput
from dpfed.data.store.records import RecordStore
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.planning.proxy import LEAST_GROUPS, chosen, declared_plan
from dpfed.progress import Silent


def plan_of(config, records=None):
    return declared_plan(config, records, Silent())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """64 images without captions, and the same marked private."""
    paths = {}
    for public in (True, False):
        path = tmp_path_factory.mktemp("pictures") / "store"
        with StoreWriter(path, name="pictures", kind="image", size=16, public=public) as writer:
            for number in range(64):
                writer.add(RecordInput(str(number), np.full((16, 16, 3), number, np.uint8)))
        paths[public] = path
    return paths


@pytest.mark.long
def test_the_number_of_records_is_the_declared_one_or_the_users(tiny, tiny_config):
    assert plan_of(tiny_config).sampling.records == 600
    assert plan_of(tiny_config, 5_000).sampling.records == 5_000
    tiny["data"] = {"source": "folder", "path": "not/here", "size": 16}  # nobody looks where the records are said to be
    assert plan_of(parse_config(tiny), 5_000) == plan_of(tiny_config, 5_000)


def test_a_number_that_nobody_knows_yet_is_asked_for(tiny, tmp_path):
    (tmp_path / "images").mkdir()
    tiny["data"] = {"source": "folder", "path": str(tmp_path / "images"), "size": 16}
    with pytest.raises(UserError, match="--records N. .forecast-plan-records"):
        plan_of(parse_config(tiny))


@pytest.mark.parametrize(
    ("section", "changes", "sentence"),
    [
        ("bounding", {"method": "none", "group_size": 4}, "forecast-plan-no-noise"),
        ("bounding", {"method": "batch"}, "forecast-plan-batch"),
        ("privacy", {"epsilon": 1e9, "batch": 60, "steps": 6}, "epsilon-too-large"),
        ("privacy", {"epsilon": 8.0, "batch": 6_000, "steps": 6}, "batch must lie"),
    ],
)
def test_what_cannot_be_forecast_is_refused(tiny, section, changes, sentence):
    if changes.get("method") == "none":
        tiny["privacy"] = {"batch": 60, "steps": 6}
    with pytest.raises(UserError, match=sentence):
        plan_of(parse_config({**tiny, section: changes}))


def test_only_enough_public_records_of_the_models_kind_may(tiny, tiny_config, public_store, pictures, tmp_path):
    plan = plan_of(tiny_config)
    assert chosen(None, tiny_config, plan).source == "procedural" and chosen("shapes", tiny_config, plan).path is None
    proxy = chosen(str(public_store.path), tiny_config, plan)
    assert (proxy.path, proxy.count, proxy.at_most(20), proxy.at_most(500)) == (public_store.path, 60, 20, 60)
    with pytest.raises(UserError, match="proxy-not-public"):
        chosen(str(pictures[False]), tiny_config, plan)
    with pytest.raises(UserError, match="proxy-no-captions"):
        chosen(str(pictures[True]), tiny_config, plan)
    with pytest.raises(UserError, match="no record store at"):
        chosen(str(tmp_path / "nowhere"), tiny_config, plan)
    with pytest.raises(UserError, match="on this machine"):
        chosen("s3://bucket/store", tiny_config, plan)
    tiny["bounding"]["group_size"] = 60 // LEAST_GROUPS + 1
    large = parse_config(tiny)
    with pytest.raises(UserError, match="60 training records, .* 8 groups of 8, so 64 .*proxy-few-records"):
        chosen(str(public_store.path), large, plan_of(large))


@pytest.fixture
def unreadable(tmp_path, monkeypatch):
    """A private store whose records are gone: their file has its length, and nothing in it. Opening it ends the test."""
    path = tmp_path / "private"
    write_shapes(path, train=600, validation=0, test=50)
    file = path / "records.arrow"
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)
    real = RecordStore.open.__func__

    def refusing(cls, place, *rest):
        assert str(place) != str(path), "a private store was opened"
        return real(cls, place, *rest)

    monkeypatch.setattr(RecordStore, "open", classmethod(refusing))
    return path


@pytest.mark.parametrize("command", ["forecast", "rehearse"])
def test_no_private_record_is_read(dpfed, tiny, unreadable, public_store, shapes, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    tiny["data"]["path"] = str(unreadable)
    tiny["privacy"] |= {"steps": 2, "accountant": "rdp"}
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny))
    monkeypatch.setattr("dpfed.planning.rehearsal._FACTORS", (2.0,))
    monkeypatch.setattr("dpfed.planning.rehearsal._others", lambda _: {})
    code, out, err = dpfed(command, "tiny.toml", "--public", shapes.path, "--json")
    assert code == 0, err
    with pytest.raises(AssertionError, match="a private store was opened"):  # as a run does
        dpfed("pretrain", "tiny.toml", "--run", "run")
