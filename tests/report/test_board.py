"""The page for ethics boards says what the card says: never more, and nothing where no guarantee holds."""

import dataclasses
import html
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.config import parse_config
from dpfed.privacy.promise import meaning
from dpfed.report.board import NO_PROMISE, board_page, right_of_100
from dpfed.report.facts import FIXED_SEED, LABELLED_BANK, UNSOUND
from dpfed.runs.pretraining import pretrain


def words_of(page):
    body = page.partition("</head>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def dots(page, kind):
    return page.partition("</head>")[2].count(f'class="{kind}"/>')


@given(st.floats(0, 50), st.floats(0, 1e-3))
@settings(max_examples=200, deadline=None)
def test_the_picture_never_shows_fewer_than_may_be_right(epsilon, delta):
    most = (math.exp(epsilon) + delta) / (math.exp(epsilon) + 1)
    assert min(100, 100 * most - 1e-9) <= right_of_100(epsilon, delta) <= 100 * most + 2


@pytest.mark.parametrize(("epsilon", "verdict"), [(1.0, "A strong promise"), (1.001, "A limited"), (5.001, "A weak promise")])
def test_words_and_picture_are_those_of_the_numbers(facts, epsilon, verdict):
    page = board_page(dataclasses.replace(facts, epsilon_spent=epsilon, marks=(LABELLED_BANK,)))
    delta, right = facts.plan.promise.delta, right_of_100(epsilon, facts.plan.promise.delta)
    assert verdict in page and meaning(epsilon, delta, facts.one, "the trained model") in words_of(page)
    assert (dots(page, "coin"), dots(page, "seen"), dots(page, "wrong")) == (50, right - 50, 100 - right)
    assert LABELLED_BANK.text in words_of(page)


@pytest.mark.parametrize("change", [{"marks": (FIXED_SEED,)}, {"marks": (UNSOUND,)}, {"epsilon_spent": math.inf}])
@pytest.mark.parametrize("protected", ["record", "person"])
def test_a_void_run_promises_nothing(facts, change, protected):
    page = words_of(board_page(dataclasses.replace(facts, protected=protected, **change)))
    assert NO_PROMISE in page and "tossing a coin" not in page and "To whom it is promised" not in page
    for mark in change.get("marks", ()):
        assert mark.text in page


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 40.0, 400.0, 1e5])
def test_any_finite_epsilon_makes_a_page(facts, epsilon):
    page = words_of(board_page(dataclasses.replace(facts, protected="record", epsilon_spent=epsilon)))
    assert "by tossing a coin" in page and "nan" not in page


def test_persons_and_unfinished_runs_are_told(facts):
    page = words_of(board_page(dataclasses.replace(facts, protected="person", steps_charged=3)))
    assert "whether one person with all its records took part" in page and "training units" in page
    assert "The run is not finished: 3 of" in page and "A person with several records" not in page
    assert "A person with several records is protected less" in words_of(
        board_page(dataclasses.replace(facts, protected="record"))
    )


def test_what_comes_from_a_run_is_text(facts):
    page = board_page(dataclasses.replace(facts, name="<script>alert(1)</script>", budget="<img src=x>"))
    assert "<script" not in page and "<img" not in page and "http" not in page


@pytest.mark.long
def test_every_run_writes_it_beside_its_card(tiny, tmp_path):
    tiny["evaluation"] = {"split": "none"}
    run = pretrain(parse_config(tiny), tmp_path / "run")
    page = words_of(run.board.read_text(encoding="utf-8"))
    card = run.card.read_text(encoding="utf-8")
    assert "tossing a coin" in page and run.identity[:16] in page
    epsilon = re.search(r"is \(([\d.]+), ([\d.e-]+)\)-differentially", card)
    assert f"epsilon {epsilon[1]}, delta {epsilon[2]}" in page
