"""The experiments' runs, planned and not trained: valid, at the scale that was asked for, and comparable."""

import math

import pytest

from dpfed.errors import UserError
from dpfed.reproduce.comparison import DATA_SETS
from dpfed.reproduce.experiments import EXPERIMENTS, experiment
from dpfed.reproduce.runs import Request, plan_runs


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_valid_configurations(name, scale, shapes, tmp_path):
    chosen = experiment(name)
    for data in chosen.data:
        request = Request(chosen, DATA_SETS[data], scale, chosen.epsilons, None, shapes.path, True, tmp_path)
        if chosen.pretrained and scale == "cpu":
            with pytest.raises(UserError, match="experiment-scale"):
                plan_runs(request)
            continue
        planned = plan_runs(request)
        assert len({item.folder for item in planned}) == chosen.count(scale)
        for item in planned:
            assert (item.epsilon == math.inf) == (item.config.bounding.method == "none")


def test_fewer_methods_have_results_of_their_own(tmp_path):
    def name(methods):
        chosen = experiment("table1")
        return Request(chosen, DATA_SETS["cifar10"], "cpu", chosen.epsilons, methods, tmp_path, True, tmp_path).name

    every = tuple({variant.method for variant in experiment("table1").all_variants})
    assert name(None) == name(every) == name(every[::-1]) == "table1-cifar10-cpu"
    assert name(("group", "batch")) == name(("batch", "group", "batch")) == "table1-cifar10-cpu-batch-group"


def test_the_papers_scale_is_its_own_and_the_small_one_smaller(shapes, tmp_path):
    for data in experiment("table1").data:
        whole, small = (
            plan_runs(Request(experiment("table1"), DATA_SETS[data], scale, (10.0,), ("group",), shapes.path, False, tmp_path))[
                0
            ]
            for scale in ("gpu", "cpu")
        )
        config = whole.config
        assert (config.model.image, config.privacy.batch, config.privacy.steps) == ("resnet18", 2048, 1200)
        assert (config.bounding.group_size, config.objective.augmentations, config.privacy.epsilon) == (16, 1, 10.0)
        assert small.config.privacy.batch < 2048
        assert small.config.privacy.steps < 1200
        assert small.config.model.image == "cnn"
        assert small.config.objective == config.objective


def test_methods_differ_in_their_method_and_rate_alone(shapes, tmp_path):
    chosen = experiment("methods")
    planned = plan_runs(Request(chosen, DATA_SETS["shapes"], "cpu", (8.0,), None, shapes.path, False, tmp_path))
    trees = [item.config.model_dump() for item in planned]
    rates: dict[str, list[float]] = {}
    for tree in trees:
        rates.setdefault(tree["bounding"]["method"], []).append(tree["optimizer"].pop("learning_rate"))
    assert {"group", "batch", "sample", "logit", "released", "none"} <= rates.keys()
    assert set(rates["batch"]) > set(rates["group"]) and len(rates["group"]) == 1, "ours has more of a choice than the others"
    for tree in trees:
        tree.pop("name")
        size, public = tree["bounding"].pop("group_size"), tree.pop("public")
        method, batch = tree["bounding"].pop("method"), tree["privacy"].pop("batch")
        assert size == (4 if method in ("group", "none") else 16), "others have no groups"
        assert batch * (1 + public["records"] * (method == "public")) == 2048, "a step is as many passes of the model"
        assert method != "public" or (public["source"], public["half"]) == ("shapes", "first")
        tree["privacy"].pop("epsilon")
    assert all(tree == trees[0] for tree in trees)


def test_without_privacy_the_small_scale_takes_its_own_rate(shapes, tmp_path):
    def rates(name, scale):
        chosen = experiment(name)
        request = Request(chosen, DATA_SETS["cifar10"], scale, chosen.epsilons, None, shapes.path, False, tmp_path)
        return {item.config.bounding.method: item.config.optimizer.learning_rate for item in plan_runs(request)}

    small, whole = rates("table13", "cpu"), rates("table13", "gpu")
    assert small["none"] < small["group"]
    assert whole["none"] == whole["group"]
