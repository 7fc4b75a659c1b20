"""The public basis of private moments: made once, of public records alone, named in the run's papers, the same everywhere."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save

import dpfed
from dpfed.config import parse_config
from dpfed.data.store.layout import read_layout
from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.errors import UserError
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import simulate
from dpfed.models.basis import principal_basis, read, written
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.statement import statement
from dpfed.protocol.terms import Terms
from dpfed.runs import public_basis as room
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain
from tests.federation.lab import Lab
from tests.frozen_towers import frozen

FEW = 120  # generated records, so that tests take no minute


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Weights of towers, and stores: what several tests need, made once."""
    return tmp_path_factory.mktemp("basis")


@pytest.fixture
def tree(tiny_moments, places, monkeypatch):
    """A run of private moments behind towers that nobody aligned."""
    monkeypatch.setattr(room, "GENERATED", FEW)
    model = frozen(tiny_moments, places)["model"]
    data = tiny_moments["data"] | {"stores": str(places / "stores")}
    return tiny_moments | {"model": model, "data": data, "privacy": {"epsilon": 8.0}}


def store_of(folder, count=150, public=True, images=None, seed=5):
    """A store whose pictures and captions do not belong together."""
    drawn = np.random.default_rng(seed).integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)
    with StoreWriter(folder, name="given", kind="image-text", size=16, public=public) as writer:
        for number, picture in enumerate(drawn if images is None else [*images, *drawn]):
            writer.add(RecordInput(str(number), picture, (f"a large {('red', 'blue', 'green')[number % 3]} circle {number}",)))
    return str(folder)


def built(tree):
    return build(parse_config(tree), Randomness.from_seed(0))


def bases_of(parts):
    heads = parts.model.moments
    return {side: heads.basis(side) for side in ("image", "text")}


@pytest.mark.long
def test_a_basis_is_made_once_and_named_in_the_papers(tree, tmp_path, monkeypatch):
    run = pretrain(parse_config(tree), tmp_path / "run")
    options = json.loads(run.results.read_text())["privacy"]["options"]
    digest = run.config().bounding.options["basis_digest"]
    assert (options["basis"], options["basis_fingerprint"]) == ("generated", digest)
    assert digest in run.card.read_text() and "generated" in run.card.read_text()
    monkeypatch.setattr(room, "principal_basis", None)  # what is kept is read
    again = pretrain(parse_config(tree), tmp_path / "again")
    assert again.config().bounding.options["basis_digest"] == digest


@pytest.mark.long
def test_it_is_a_function_of_public_records_alone(tree, tmp_path, shapes):
    """Another private store, another seed and another N give the same map."""
    first = bases_of(built(tree))
    names = tree["data"] | {"stores": str(tmp_path / "others"), "path": store_of(tmp_path / "private", public=False)}
    unmeasured = {"evaluation": {"split": "none"}, "data": names}
    others = bases_of(built(tree | unmeasured | {"privacy": {"noise_multiplier": 3.0, "accountant": "rdp", "seed": 9}}))
    for side, basis in first.items():
        rows = min(len(basis.rows), len(others[side].rows))
        assert torch.equal(basis.rows[:rows], others[side].rows[:rows]) and torch.equal(basis.centre, others[side].centre)


@pytest.mark.long
def test_the_published_heads_have_the_origin(tree, tmp_path):
    run = pretrain(parse_config(tree), tmp_path / "run")
    encoder, heads = dpfed.load(run.path), load_file(run.model / "heads.safetensors")
    pictures = np.random.default_rng(0).integers(0, 255, (5, 16, 16, 3), dtype=np.uint8)
    with torch.inference_mode():
        features = encoder.model.features(encoder._views.plain(torch.from_numpy(pictures).permute(0, 3, 1, 2)))
    unit = F.normalize((F.normalize(features, dim=-1) - heads["image.origin"]) @ heads["image.projection"].T, dim=-1)
    embedding = F.normalize((unit - heads["image.centre"]) @ heads["image.matrix"], dim=-1)
    torch.testing.assert_close(embedding, encoder.embed_images(pictures))


@pytest.mark.long
def test_random_rows_are_those_of_old_folders(tree, tmp_path):
    """Heads without an origin are what releases before there was a basis wrote; they load as they are."""
    run = pretrain(parse_config(tree | {"bounding": {"method": "moments", "options": {"basis": "random"}}}), tmp_path / "run")
    heads = load_file(run.model / "heads.safetensors")
    assert {name for name in heads if name.startswith("image")} == {"image.projection", "image.centre", "image.matrix"}
    assert "basis_digest" not in run.config().bounding.options and "basis" not in json.loads(run.results.read_text())["privacy"]
    assert dpfed.load(run.path).embed_images(np.zeros((1, 16, 16, 3), np.uint8)).isfinite().all()


@pytest.mark.long
def test_a_store_gives_the_basis_of_its_records(tree, tmp_path):
    bounding = {"method": "moments", "options": {"basis": "store"}}
    parts = built(tree | {"bounding": bounding, "public": {"path": store_of(tmp_path / "given")}})
    assert parts.config.public.digest == read_layout(tmp_path / "given").header["contents"]["fingerprint"]
    others = bases_of(built(tree))
    assert not any(torch.equal(basis.centre, others[side].centre) for side, basis in bases_of(parts).items())


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("private", "not marked public"),
        ("few", "needs 100 records or more"),
        ("shared", "share images"),
        ("none", "give public.path"),
        ("aligned", "a text tower that were never aligned"),
    ],
)
def test_what_cannot_be_a_basis_is_refused(tree, tiny_moments, tmp_path, shapes, kind, said):
    bounding = {"method": "moments", "options": {"basis": "store"}}
    if kind == "none":
        given = tree | {"bounding": bounding}
    elif kind == "aligned":
        given = tiny_moments | {"bounding": {"method": "moments", "options": {"basis": "generated"}}}
    else:
        private = tmp_path / "mine"
        picture = np.random.default_rng(9).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        store_of(private, 200, public=False, images=[picture])
        count, images = (50 if kind == "few" else 150), ([picture] if kind == "shared" else None)
        path = store_of(tmp_path / "given", count, kind != "private", images, seed=6)
        data = tree["data"] | {"source": "store", "path": str(private)}
        given = tree | {"bounding": bounding, "public": {"path": path}, "data": data, "evaluation": {"split": "none"}}
    with pytest.raises(UserError, match=said):
        pretrain(parse_config(given), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_another_basis_than_the_runs_is_refused(tree, tmp_path):
    parts = built(tree)
    folder = tmp_path / "elsewhere"
    tampered = parts.config.model_copy(update={"data": parts.config.data.model_copy(update={"stores": str(folder)})})
    options = dict(parts.config.bounding.options) | {"basis_digest": "0" * 32}
    other = tampered.model_copy(update={"bounding": parts.config.bounding.model_copy(update={"options": options})})
    with pytest.raises(UserError, match="is not the one that the run was started with"):
        build(other, Randomness.from_seed(0))


@pytest.mark.long
def test_the_terms_of_a_federation_hold_the_basis(tree, tmp_path, places):
    parts = built(tree)
    digest = parts.config.bounding.options["basis_digest"]
    generated = room.PublicBasis("generated", (places / "stores" / "bases" / f"{digest}.safetensors").read_bytes())
    options = {"basis": "generated", "basis_digest": digest}
    elsewhere = tree["data"] | {"stores": str(tmp_path / "nothing")}
    lab = Lab(tree | {"bounding": tree["bounding"] | {"options": options}, "data": elsewhere}, tmp_path, basis=generated.text)
    for side, basis in bases_of(lab.parts).items():
        assert torch.equal(basis.centre, generated.bases[side].centre) and not (tmp_path / "nothing").exists()
    assert digest in dict(statement(lab.terms))["public basis"]
    other = lab.terms.model_dump(mode="json") | {"basis": room.PublicBasis("generated", b"another").text}
    with pytest.raises(UserError, match="the public basis is not the one that the configuration names"):
        type(lab.terms)._checked(other)


@pytest.mark.parametrize("kind", ["bytes", "zeros", "not finite", "far away"])
def test_a_damaged_basis_in_the_terms_is_refused(tree, tmp_path, kind):
    """Whoever writes the terms chooses these bytes, and sites divide by their numbers."""
    rows = {"zeros": torch.zeros(8, 16), "not finite": torch.full((8, 16), float("inf"))}.get(kind, torch.eye(8, 16))
    tensors = {"image.projection": rows, "image.origin": torch.full((16,), 9.0 if kind == "far away" else 0.0)}
    damaged = room.PublicBasis("generated", b"something else" if kind == "bytes" else save(tensors))
    options = {"basis": "generated", "basis_digest": damaged.fingerprint}
    with pytest.raises(UserError, match="basis-damaged"):
        Lab(tree | {"bounding": tree["bounding"] | {"options": options}}, tmp_path, basis=damaged.text)


@pytest.mark.long
def test_simulated_sites_take_it_from_their_terms(tree, tmp_path):
    folder = simulate(parse_config(tree), tmp_path / "run", Simulation(sites=2)).path
    terms = Terms.load(folder / "terms.json")
    heads = load_file(folder / "model" / "heads.safetensors")
    basis = room.basis_in(terms).bases["image"]
    assert torch.equal(heads["image.projection"], basis.rows[: len(heads["image.projection"])])
    assert torch.equal(heads["image.origin"], basis.centre)
    assert terms.config["bounding"]["options"]["basis_digest"] in (folder / "privacy_card.md").read_text()


def test_files_of_a_basis_come_back():
    bases = {"image": principal_basis(torch.randn(40, 12), 8), "text": principal_basis(torch.randn(40, 9), 8)}
    again = read(written(bases))
    for side, basis in bases.items():
        assert torch.equal(basis.rows, again[side].rows) and torch.equal(basis.centre, again[side].centre)
        torch.testing.assert_close(basis.rows @ basis.rows.T, torch.eye(8), atol=2e-3, rtol=0)
    for other in (b"something else", save({"other": torch.zeros(2)})):
        with pytest.raises(ValueError, match="not a basis"):
            read(other)
