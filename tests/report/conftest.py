"""A run directory as training leaves it, and a small store in memory."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpfed.building.plan import plan_of
from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger, Release
from dpfed.report.card import privacy_card
from dpfed.report.facts import CardFacts
from tests.memory_store import Splits
from tests.written_run import CLIPPED, MADE

TREE = {"name": "shapes", "model": {"kind": "image-text"}, "data": {"size": 8}, "privacy": {"epsilon": 8.0}}
CONFIG = parse_config(TREE)
PLAN = plan_of(60_000, parse_config({**TREE, "privacy": {"epsilon": 8.0, "accountant": "rdp"}}))


@pytest.fixture(scope="module", autouse=True)
def charts(drawn):
    """Here they are what is tested."""


class Store(Splits):
    kind, name, public = "image-text", "memory", True

    def __init__(self, public=True):
        self.public = public
        self.keys = np.arange(30, dtype=np.uint64)
        self.labels = {"shape": np.arange(30) % 3}
        self.label_names = {"shape": ["circle", "square", "triangle"]}

    def __len__(self):
        return 30

    def split(self, name):
        return np.arange(10, 30) if name == "test" else np.arange(10)

    def images(self, rows, size):
        assert self.public, "a private picture was read"
        g = torch.Generator().manual_seed(0)
        return torch.randint(256, (30, 3, size, size), generator=g, dtype=torch.uint8)[torch.as_tensor(rows)]

    def read(self, rows):
        return self.images(rows, 8)

    def captions(self, rows):
        return [[f"record {row} <b>bold</b>"] for row in rows]


class Model(torch.nn.Module):
    def features(self, images):
        return images.flatten(1)

    embed_images = features

    def embed_text(self, tokens):
        return torch.ones(len(tokens), 192)


@pytest.fixture
def config():
    return CONFIG


@pytest.fixture
def make_store():
    return Store


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def facts():
    text, number = "as in the plan", 1.0
    needed = [field for field in dataclasses.fields(CardFacts) if field.default is dataclasses.MISSING]
    values = {field.name: text if field.type == "str" else number for field in needed}
    values |= {"name": "shapes", "plan": PLAN.replace(delta=1e-5), "steps_charged": PLAN.steps, "outputs": ("the model",)}
    return CardFacts(**values)


@pytest.fixture
def run_folder(tmp_path, facts):
    """Writes a run directory: run_folder(name, value of the headline metric, marks)."""

    def write(name="shapes", value=0.7, marks=()):
        folder = tmp_path / "runs" / name.replace("<", "_").replace("/", "_")
        folder.mkdir(parents=True)
        common = {"name": "text_to_image_R@10", "split": "test", "protocol": "cosine <i>"}
        evaluations = [{**common, "value": 0.01, "model": "untrained", "step": 0}]
        evaluations += [{**common, "value": value * step / 10, "model": "trained", "step": step} for step in (5, 10)]
        results = {"privacy": {"epsilon": 1.0, "delta": 1e-5, **CLIPPED}, "evaluations": evaluations, "run": MADE}
        (folder / "results.json").write_text(json.dumps(results))
        ledger = Ledger.create(folder / "ledger.jsonl", PLAN)
        for step in range(10):
            ledger.charge(Release(step, f"{step:032x}"))
        lines = [json.dumps({"step": step, "epsilon": step / 10, "learning_rate": 1e-3}) for step in range(1, 11)]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "config.toml").write_text(CONFIG.dump().replace('"shapes"', json.dumps(name), 1))
        (folder / "privacy_card.md").write_text(privacy_card(dataclasses.replace(facts, name=name, marks=marks)))
        return folder

    return write
