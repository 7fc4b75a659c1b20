"""The papers' figures: all there, in range, and in agreement with each other."""

from __future__ import annotations

from collections import Counter

import pytest

from dpfed.config import load_config
from dpfed.reproduce.published import PAPERS, beside, published

IMAGES, CAPTIONED = ("fashion-mnist", "cifar10", "eurosat", "camelyon"), ("cuhk-pedes", "rstpreid", "deepfashion-mm", "roco")

# Methods (or rows) x promises x data sets x metrics.
COUNTS = {
    "dp-gcl": {
        "1": 5 * 2 * 4 * 2,
        "2": 5 * 2 * 2 * 2,
        "3": 5 * 2 * 4 * 2,
        "4": 3 * 4 * 2,
        "5": 7 * 4 * 2,
        "6": 5 * 4 * 2,
        "7": 3 * 3 * 2,
        "9": 9 * 9,
        "11": 2 * 4 * 2,
        "12": 2 * 4,
        "13": 2 * 8 * 2,
        "14": 5 * 2 * 2 * 2,
    },
    "logit-dp": {"1": 3 * 2 * 4, "2": 3 * 4, "3": 3 * 4 + 4 * 4, "4": 3 * 4},
    "batch-norm": {"2": 6 * 5, "3": 6 * 5, "4": 2 * 5, "5": 3 * 7, "6": 4 * 4, "7": 2 * 6},
    "dpcl": {"settings": 41},
}


def value(paper: str, table: str, **key: str | float) -> float:
    figure = beside(paper, table, **key)
    assert figure is not None, (paper, table, key)
    return figure.value


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_has_all_its_figures_and_none_twice(paper):
    rows = published(paper)
    assert Counter(row.table for row in rows) == COUNTS[paper]
    keys = [(r.table, r.data, r.model, r.method, r.setting, r.epsilon, r.metric) for r in rows]
    assert len(set(keys)) == len(keys)
    assert {row.paper for row in rows} == {paper}


@pytest.mark.parametrize("paper", PAPERS)
def test_figures_are_in_range(paper):
    for row in published(paper):
        assert row.epsilon is None or row.epsilon > 0, row
        assert row.std is None or 0 <= row.std < 15, row
        if row.metric.endswith(("accuracy", "R@10")) and paper != "logit-dp" and row.value is not None:
            assert 0 < row.value <= 100, row
        if paper == "logit-dp":
            assert 0 < row.value < (1.5 if row.metric.startswith("relative") else 1), row


def test_only_what_diverged_has_no_value():
    missing = {
        (row.method, row.table, row.model, row.setting) for paper in PAPERS for row in published(paper) if row.value is None
    }
    assert {(table, model, setting) for _, table, model, setting in missing} == {
        ("2", "LeNet-300-100", "sigma=1"),
        ("2", "LeNet-300-100", "sigma=2"),
        ("2", "LeNet-5", "sigma=1"),
        ("2", "LeNet-5", "sigma=2"),
        ("3", "VGG-16", "sigma=2"),
        ("3", "VGG-16-mod", "sigma=2"),
    }


def test_the_settings_of_table_9_are_those_of_the_configurations():
    keys = {
        "batch": "privacy.batch",
        "steps": "privacy.steps",
        "learning_rate": "optimizer.learning_rate",
        "optimizer": "optimizer.name",
        "group_size": "bounding.group_size",
        "augmentations": "objective.augmentations",
        "clip_norm": "bounding.clip_norm",
        "temperature": "objective.temperature",
    }
    for name in (*IMAGES, "imagenet", *CAPTIONED):
        config = load_config(name).model_dump()
        for metric, key in keys.items():
            section, field = key.split(".")
            assert config[section][field] == value("dp-gcl", "9", data=name, metric=metric), (name, metric)
