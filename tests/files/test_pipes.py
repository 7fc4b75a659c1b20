"""A pipe in a file's place is refused at once by all who read files that somebody else may have put there."""

import os

import pytest
from torch import nn

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import results_in
from dpfed.config import ModelConfig, load_config
from dpfed.data.store.layout import HEADER
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError
from dpfed.federation.provisioning.certificates import _authority
from dpfed.federation.site.folder import SiteFolder
from dpfed.models.blueprints import blueprint
from dpfed.models.folder import DESCRIPTION, describe
from dpfed.models.weight_files import reading_weights
from dpfed.privacy.ledger import Ledger, has_begun
from dpfed.protocol.cards import SiteCard
from dpfed.protocol.identity import Identity
from dpfed.protocol.terms import Terms
from dpfed.report.gallery import INDEX, Gallery, _tile
from dpfed.training.checkpoint import load_weights
from tests.fuzz.profiles import answered_in_time


def authority(pipe):
    """Of a folder that was sound before the pipe came into it."""
    folder = pipe.parent / "sound"
    folder.mkdir()
    _authority(folder)
    pipe.replace(folder / pipe.name)
    return _authority(folder)


# What is read, the file's name, and the call with its path.
READERS = {
    "a configuration": ("c.toml", load_config),
    "an architecture": ("a.json", lambda path: blueprint(ModelConfig(kind="open_clip", architecture=str(path)))),
    "weights": ("w.pt", lambda path: reading_weights(path, "a model").__enter__()),
    "a model": (DESCRIPTION, lambda path: describe(path.parent)),
    "a checkpoint": ("step-00000001.safetensors", lambda path: load_weights(path, nn.Linear(1, 1), [])),
    "a ledger": ("ledger.jsonl", Ledger.open),
    "a run's ledger": ("ledger.jsonl", has_begun),
    "a run's key": ("secret.key", lambda path: RunDirectory(path.parent).randomness()),
    "results": ("results.json", results_in),
    "a gallery": (INDEX, lambda path: Gallery.read(path.parent)),
    "a picture": ("0.png", lambda path: _tile({"file": path.name, "text": "", "role": ""}, path.parent)),
    "a store": (HEADER, lambda path: RecordStore.open(path.parent)),
    "terms": ("terms.json", Terms.load),
    "a site's card": ("card.json", SiteCard.load),
    "a party's key": ("identity.key", Identity.load),
    "a site's secret": ("secret.key", lambda path: SiteFolder(path.parent).randomness()),
    "a certificate": ("ca.crt", authority),
    "the key of a certificate": ("ca.key", authority),
}


@pytest.mark.parametrize("what", READERS)
def test_nobody_waits_for_who_writes_to_it(what, tmp_path):
    name, read = READERS[what]
    os.mkfifo(tmp_path / name)
    with answered_in_time(5), pytest.raises((UserError, OSError)):
        read(tmp_path / name)
