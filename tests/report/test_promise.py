"""A promise is worded as its number allows, and no number is printed below its value."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import read_view
from dpfed.console.terminal import console, show_run
from dpfed.privacy.promise import factor, guess, large_delta, meaning, of_several, percent_up, round_down, round_up
from dpfed.report import plots
from dpfed.report.html import write_report

ROOT = Path(__file__).parents[2]
EPSILONS = st.floats(1e-6, 700, allow_nan=False)


def number(text):
    return 10 ** float(text[3:]) if text.startswith("10^") else float(text.replace(",", "").removesuffix("%").strip())


@given(EPSILONS, st.floats(1e-12, 0.999))
@settings(max_examples=300, deadline=None)
def test_bounds_are_never_printed_below_their_value(epsilon, delta):
    assert float(round_up(epsilon)) >= epsilon >= float(round_down(epsilon))
    if epsilon < 300:
        assert number(factor(epsilon)) >= math.exp(epsilon) * (1 - 1e-12)
    most = (math.exp(-epsilon) * delta + 1) / (1 + math.exp(-epsilon))
    assert number(guess(epsilon, delta)) >= 100 * most * (1 - 1e-12)
    assert number(percent_up(most)) >= 100 * most * (1 - 1e-12)


@given(EPSILONS)
@settings(max_examples=200, deadline=None)
def test_three_wordings_by_epsilon(epsilon):
    words = meaning(epsilon, 1e-6)
    shown = float(round_up(epsilon))
    assert ("tells little about any one record" in words) == (shown <= 1)
    assert ("That limits what can be learnt" in words) == (1 < shown <= 5)
    assert ("This promise alone is weak" in words) == (shown > 5)
    assert guess(shown, 1e-6) in words


def test_an_infinite_epsilon_promises_nothing():
    assert "nothing limits" in meaning(math.inf, 1e-6)


@pytest.mark.parametrize(("delta", "count", "large"), [(1e-5, 1000, False), (1 / 1000, 1000, False), (0.5, 1000, True)])
def test_a_delta_is_large_above_one_in_n(delta, count, large):
    assert bool(large_delta(delta, count)) == large


def test_a_group_is_worth_what_composing_the_inequality_gives():
    """P(S) <= e^eps P'(S) + delta, applied m times."""
    epsilon, delta, count = 0.7, 1e-4, 4
    added = 0.0
    for _ in range(count):
        added = math.exp(epsilon) * added + delta
    assert of_several(epsilon, delta, count) == pytest.approx((count * epsilon, added))
    assert of_several(8.0, 1e-5, 5) is None and of_several(800.0, 1e-5, 5) is None


# How an epsilon, or a promise's delta, would be formatted by a number's own rounding, which may go down.
_ROUNDED = re.compile(r"""\{[^{}:"]*(epsilon|delta|budget)[^{}:"]*:[+,.\d]*[efg%]\}|\bround\([^()]*(epsilon|\bdelta)""")
_RIGHT = {
    'f"-epsilon{epsilon:g}"',  # the name of a folder
    'f"{name}-{epsilon:g}"',  # the name of a folder
    'f"{delta:.3g}: raise',  # no noise keeps it: the sentence names what was asked for
    "_ceiling(epsilon / math.log(10), 1)",  # a factor, rounded up
    "round(most_tpr(0.01, epsilon=1.0",  # a doctest
}


def test_no_line_of_the_code_rounds_an_epsilon_by_itself():
    lines = []
    for folder in ("dpfed", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for count, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
                if _ROUNDED.search(line) and not any(right in line for right in _RIGHT):
                    lines.append(f"{file.relative_to(ROOT)}:{count}: {line.strip()}")
    assert not lines


def test_an_epsilon_of_7_9951_is_shown_as_8_everywhere(run_folder, tmp_path, monkeypatch):

    drawn = []
    annotate = plots.Axes.annotate
    monkeypatch.setattr(plots.Axes, "annotate", lambda *a, **k: drawn.append(a[1]) or annotate(*a, **k))
    folder = run_folder()
    card = (folder / "privacy_card.md").read_text().replace("1.00, 1.00e-5", f"{round_up(7.9951)}, 1.00e-5")
    (folder / "privacy_card.md").write_text(card)
    results = json.loads((folder / "results.json").read_text())
    privacy = {"epsilon": 7.9951, "delta": 1.00001e-5, "guarantee": True, "accountant": "pld", "records": 1000}
    privacy = {**results["privacy"], **privacy}
    (folder / "results.json").write_text(json.dumps({**results, "name": "x", "privacy": privacy}))
    views = [dataclasses.replace(read_view(folder), spent=[(1, 7.9951)])] * 2
    for count in (1, 2):
        write_report(tmp_path / f"{count}.html", views[:count])
    with console.capture() as captured:
        show_run(RunDirectory(folder))
    (folder / "results.json").write_text(json.dumps({**results, "name": "x", "privacy": privacy, "evaluations": []}))
    with console.capture() as unmeasured:
        show_run(RunDirectory(folder))
    assert "before" in captured.get() and "before" not in unmeasured.get()  # no table of nothing
    texts = [*drawn, captured.get(), *((tmp_path / f"{count}.html").read_text() for count in (1, 2))]
    everything = re.sub(r"<pre>.*?</pre>|<svg .*?</svg>", "", "\n".join(texts), flags=re.DOTALL)
    assert "spent 8.00" in drawn and "epsilon 8.00, delta 1.01e-5" in captured.get()
    assert not re.search(r"\b7\.9\d|1\.00e-0?5\b(?=\))", captured.get() + "".join(drawn))
    assert "7.99" not in everything.replace("7.9951", "")
