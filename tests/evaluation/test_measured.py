"""A figure that was written to a file, read back: whole, or refused by the name of what is wrong."""

import json

import pytest

from dpfed.evaluation.measured import Evaluation, wrong_fact

FACTS = json.loads(
    json.dumps(Evaluation("knn3_accuracy[label]", 0.4, "trained", "test", "cosine", 7, 100, (0.3, 0.5), (0.1, 0.2)).facts())
)
NEEDED = ("name", "value", "model", "split", "protocol", "step")


def test_what_is_written_is_right():
    assert wrong_fact(FACTS) is None
    assert wrong_fact({key: FACTS[key] for key in NEEDED}) is None


@pytest.mark.parametrize("wrong", [None, True, [], {}, [0.1], ["a", "b"], "0.1", b""], ids=repr)
@pytest.mark.parametrize("key", [*NEEDED, "interval", "change"])
def test_a_fact_of_another_kind_is_named(key, wrong):
    if isinstance(wrong, str) and isinstance(FACTS[key], str):
        return
    assert wrong_fact(FACTS | {key: wrong}) == key
    assert wrong_fact(wrong) == "name"


@pytest.mark.parametrize("value", [-0.01, 1.01, 40.0, float("nan"), float("inf")])
def test_a_figure_is_a_share(value):
    assert wrong_fact(FACTS | {"value": value}) == "value"


@pytest.mark.parametrize("key", NEEDED)
def test_a_fact_that_is_missing_is_named(key):
    assert wrong_fact({name: value for name, value in FACTS.items() if name != key}) == key
