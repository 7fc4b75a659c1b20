"""Parts that another installed package announces: a loss and an importer outside of dpfed, each in one file."""

import json
import os
import subprocess
import sys

import pytest

import dpfed
from dpfed.data.store.records import RecordStore

LOSS = '''
"""Decoupled contrastive loss: without the pair itself in the denominator (Yeh et al. 2022)."""
from dpfed.objectives.objective import ContrastOptions, Objective


def loss(embeddings, present, temperature, bias, options):
    import torch

    images = embeddings["image"]
    first, second = images[:, 0], embeddings["text"][:, 0] if "text" in embeddings else images[:, 1]
    logits = first @ second.mT / temperature
    others = present[None] & ~torch.eye(len(first), dtype=torch.bool)
    beside = logits.masked_fill(~others, -1e4).logsumexp(1)
    return torch.where(present, beside - logits.diagonal(), 0.0).sum()


DECOUPLED = Objective("decoupled contrast", loss=loss, options=ContrastOptions, least=2)
'''
IMPORTER = '''
"""A text file with a colour a line."""
import numpy as np

from dpfed.data.importers.source import Importer, Source
from dpfed.data.store.record import RecordInput


class ColoursImporter(Importer):
    name = "colours"
    layout = "a file .colours with lines NAME R G B"

    def recognises(self, path, access=None):
        return path.suffix == ".colours"

    def open(self, path, access=None):
        def records():
            for line in path.read_text().splitlines():
                name, *colour = line.split()
                picture = np.broadcast_to(np.array(colour, np.uint8), (16, 16, 3))
                yield RecordInput(name, np.ascontiguousarray(picture), (), {}, "train")

        return Source("image", records())
'''


METHOD = '''
"""Group clipping at half the noise, by a proof that nobody here has read."""
from dpfed.privacy.method import Method

HALF = Method("half", title="half", claim="It is enough.", sensitivity=lambda given: given.clip_norm, picks_engine=True)
OTHER = Method("other", title="other", claim="It is enough.", sensitivity=lambda given: given.clip_norm)
'''
ENCODER = '''
"""A small CNN."""
from torch import nn


def small(width=8):
    first = nn.Conv2d(3, width, 3, 2)
    return nn.Sequential(first, nn.GroupNorm(2, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
'''


@pytest.fixture
def package(tmp_path):
    """A folder on the module path with an installed package of these entry points; returns what runs a command with it."""

    def install(losses="decoupled = mine.losses:DECOUPLED", importers="colours = mine.importers:ColoursImporter", **more):
        place = tmp_path / "site"
        for folder in (place / "mine", place / "mine-1.2.dist-info"):
            folder.mkdir(parents=True)
        (place / "mine" / "__init__.py").touch()
        (place / "mine" / "losses.py").write_text(LOSS)
        (place / "mine" / "importers.py").write_text(IMPORTER)
        (place / "mine" / "methods.py").write_text(METHOD)
        (place / "mine" / "encoders.py").write_text(ENCODER)
        about = place / "mine-1.2.dist-info"
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.2\n")
        (about / "top_level.txt").write_text("mine\n")
        groups = {"losses": losses, "importers": importers, **more}
        text = "\n".join(f"[dpfed.{group}]\n{points}\n" for group, points in groups.items())
        (about / "entry_points.txt").write_text(text)

        def run(*arguments):
            path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
            command = [sys.executable, "-m", "dpfed", *map(str, arguments)]
            return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True)

        return run

    return install


@pytest.mark.long
def test_a_foreign_loss_trains_and_the_card_names_it(package, tiny, tmp_path):
    run = package()
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 60, "steps": 2}
    config = dpfed.parse_config(tiny | {"evaluation": {"split": "none"}})
    source = tmp_path / "config.toml"
    source.write_text(config.dump(defaults=False).replace('name = "tiny"', 'name = "foreign"'))
    done = run("pretrain", source, "--run", tmp_path / "run", "--set", "objective.name=decoupled", "--json")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "run" / "privacy_card.md").read_text()
    assert "What the loss 'decoupled' of mine 1.2 (mine.losses, SHA-256 " in card and "keeps nothing from one group" in card
    assert json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["guarantee"]
    assert "decoupled contrast" in run("config", "keys").stdout
    refused = run("pretrain", source, "--run", tmp_path / "sites", "--set", "objective.name=decoupled", "--federated", "2")
    assert refused.returncode == 2 and "[terms-foreign-loss]" in refused.stderr and not (tmp_path / "sites").exists()


@pytest.fixture
def source(tiny, tmp_path):
    """A file of a short run of images."""
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 60, "steps": 2}
    tiny["model"] = {"kind": "image", "embedding": 8, "head_hidden": 8}
    path = tmp_path / "config.toml"
    path.write_text(dpfed.parse_config(tiny | {"evaluation": {"split": "none"}}).dump(defaults=False))
    return path


@pytest.mark.long
def test_a_foreign_encoder_trains_and_the_card_names_it(package, source, tmp_path):
    run = package(encoders="tiny-net = mine.encoders:small")
    done = run("pretrain", source, "--run", tmp_path / "run", "--json", "--set", "model.image=tiny-net")
    assert done.returncode == 0, done.stderr
    assert 'image = "mine.encoders:small"' in (tmp_path / "run" / "config.toml").read_text()
    assert "mine.encoders:small, mine 1.2, SHA-256 " in (tmp_path / "run" / "privacy_card.md").read_text()


@pytest.mark.long
def test_a_foreign_method_trains_and_claims_nothing(package, source, tmp_path):
    """Nobody here has read its proof, and its own claim is not ours."""
    run = package(methods="half = mine.methods:HALF")
    done = run("pretrain", source, "--run", tmp_path / "run", "--json", "--set", "bounding.method=half")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / "privacy_card.md").exists()
    card = (tmp_path / "run" / "no_privacy_card.md").read_text()
    assert "no privacy guarantee holds" in card.partition("\n")[0] and "'half' of mine 1.2 (mine.methods, SHA-256 " in card
    assert not json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["guarantee"]


@pytest.mark.long
def test_a_foreign_importer_reads_its_own_format(package, tmp_path):
    run = package()
    (tmp_path / "all.colours").write_text("".join(f"colour{k} {k} {2 * k} {255 - k}\n" for k in range(60)))
    done = run("data", "import", "all.colours", tmp_path / "store")
    assert done.returncode == 0, done.stderr
    store = RecordStore.open(tmp_path / "store")
    assert len(store) == 60 and store.kind == "image" and {"colour0", "colour59"} <= set(store.ids(range(60)))


@pytest.mark.parametrize(
    ("methods", "code"),
    [
        ("half = mine.losses:DECOUPLED", "method-foreign"),
        ("group = mine.methods:HALF", "method-foreign"),
        ("another = mine.methods:HALF", "method-foreign"),
        ("half = mine.methods:NOWHERE", "part-broken"),
        ("other = mine.methods:OTHER", "method-engine"),
    ],
)
def test_a_method_that_cannot_be_used_is_named(package, source, tmp_path, methods, code):
    name = methods.partition(" ")[0]
    done = package(methods=methods)("pretrain", source, "--run", tmp_path / "run", "--set", f"bounding.method={name}")
    assert done.returncode == 2 and f"[{code}]" in done.stderr and "mine 1.2" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("losses", "importers", "code"),
    [
        ("decoupled = mine.nowhere:LOSS", "", "part-broken"),
        ("decoupled = mine.losses:loss", "", "loss-foreign"),
        ("infonce = mine.losses:DECOUPLED", "", "loss-foreign"),
        ("", "folder = mine.importers:ColoursImporter", "importer-foreign"),
        ("", "others = mine.importers:ColoursImporter", "importer-foreign"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(package, tmp_path, losses, importers, code):
    (tmp_path / "all.colours").write_text("a 1 2 3\n")
    command = ("config", "keys") if losses else ("data", "import", "all.colours", tmp_path / "store")
    done = package(losses, importers)(*command)
    assert done.returncode == 2 and f"[{code}]" in done.stderr and "mine 1.2" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "store").exists()
