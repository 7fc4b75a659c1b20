"""Starting weights among institutions: the terms name them, and a site needs its own copy where weights never travel."""

import json
import shutil

import pytest
import torch

from dpfed.building.model import facts_of
from dpfed.config import AdaptationConfig, parse_config
from dpfed.errors import UserError
from dpfed.federation.site.folder import SiteFolder, SiteSettings
from dpfed.federation.site.serving import site_config
from dpfed.federation.site.worker import frozen_digest
from dpfed.models.building import build_model
from dpfed.models.folder import save_encoder
from dpfed.privacy.randomness import Randomness
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.statement import statement
from dpfed.protocol.terms import Terms
from dpfed.runs.build import build
from dpfed.runs.resolution import resolve_defaults
from tests.models.conftest import SMALL

MODELS = {
    "own": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16},
    "lora": {"kind": "open_clip", "tokenizer": "words"},
    "timm": dict(kind="image-text", image="timm/test_vit", **dict.fromkeys(("text_width", "embedding"), 16), vocabulary=256),
}


def terms_of(config):
    identities = [Identity(bytes([100 + number]) * 32) for number in range(3)]
    cards = [
        SiteCard(name=f"site-{n}", records=records, signing_key=key.signing_key, exchange_key=key.exchange_key)
        for n, (records, key) in enumerate(zip((200, 400), identities, strict=False))
    ]
    return Terms.agree(config, cards, identities[2].signing_key, trust="central")


@pytest.fixture
def agreed(tiny, tmp_path, request):
    """A configuration with a start, its terms, and what a site says of itself."""
    architecture = tmp_path / "small.json"
    architecture.write_text(json.dumps(SMALL))
    model = dict(MODELS[request.param])
    if request.param == "lora":
        pytest.importorskip("open_clip")
        model["architecture"] = str(architecture)
    if request.param != "own":
        tiny |= {"adaptation": {"rank": 2, "image": "lora"}}
        tiny["data"] = {**tiny["data"], "size": 32}
    tree = {**tiny, "model": model}
    torch.manual_seed(3)
    config = resolve_defaults(parse_config(tree))
    save_encoder(
        tmp_path / "start", build_model(config.model, config.objective, AdaptationConfig(), config.data.size), facts_of(config)
    )
    config = resolve_defaults(parse_config({**tree, "model": {**model, "start": str(tmp_path / "start")}}))
    settings = SiteSettings(name="site-0", store=tiny["data"]["path"], device="cpu", engine="loop")
    if request.param == "lora":
        settings = settings.model_copy(update={"architecture": str(architecture)})
    return config, terms_of(config), settings


@pytest.mark.parametrize("agreed", ["own"], indirect=True)
def test_where_all_weights_travel_a_site_needs_no_copy(agreed):
    config, terms, settings = agreed
    assert dict(statement(terms))["starting weights"] == f"start, SHA-256 {config.model.start_digest}"
    of_site = site_config(terms, settings)
    assert of_site.model.start is None and of_site.model.start_digest is None
    site = build(of_site, Randomness.from_seed(1), terms=terms)
    coordinator = build(config, Randomness.from_seed(2), terms=terms)
    assert frozen_digest(site.model) == frozen_digest(coordinator.model)


@pytest.mark.long
@pytest.mark.parametrize("agreed", ["lora", "timm"], indirect=True)
def test_a_frozen_tower_needs_the_sites_own_copy_of_its_weights(agreed, tmp_path):
    config, terms, settings = agreed
    with pytest.raises(UserError, match="there is nothing at .*start"):
        build(site_config(terms, settings), Randomness.from_seed(1), terms=terms)
    shutil.copytree(tmp_path / "start", tmp_path / "copy")
    with_copy = settings.model_copy(update={"start": str(tmp_path / "copy")})
    site = build(site_config(terms, with_copy), Randomness.from_seed(1), terms=terms)
    coordinator = build(config, Randomness.from_seed(2), terms=terms)
    assert frozen_digest(site.model) == frozen_digest(coordinator.model)
    torch.manual_seed(4)
    save_encoder(
        tmp_path / "copy",
        build_model(config.model, config.objective, AdaptationConfig(), 32),
        facts_of(resolve_defaults(config)),
    )
    with pytest.raises(UserError, match="start-weights-changed"):
        resolve_defaults(site_config(terms, with_copy))


@pytest.mark.parametrize("agreed", ["own"], indirect=True)
def test_terms_that_do_not_say_which_weights_are_refused(agreed):
    config, _, _ = agreed
    model = config.model.model_copy(update={"start_digest": None})
    with pytest.raises(UserError, match="weights have no digest.*terms-contradiction"):
        terms_of(config.model_copy(update={"model": model}))


def test_the_paths_of_a_sites_copies_are_absolute(shapes, tmp_path, monkeypatch):
    """So a site that is served from another folder opens the same files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tower").mkdir()
    path = tmp_path / "site"
    site = SiteFolder.create(path, "north", shapes.path, text="local-dir:tower", anchors="anchors.safetensors")
    settings = site.settings()
    assert settings.text is not None and settings.text.endswith(str(tmp_path / "tower"))
    assert settings.anchors == str(tmp_path / "anchors.safetensors")
