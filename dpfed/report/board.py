"""Makes a page for ethics boards: a run's promise, whom it protects, and what an attacker could still learn.

The page restates the privacy card for readers without mathematics, with one picture. Where page and card differ, the card is
right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from dpfed.privacy.promise import CLOSE, LIMITED, guess, large_delta, meaning, of_several, round_up
from dpfed.report.card import questions, void_reasons
from dpfed.report.facts import DECLARED_PUBLIC, STARTING_WEIGHTS, CardFacts
from dpfed.report.html import page_style

NO_PROMISE = "No promise"
_CERTAIN = "100 %"  # the printed form of a limit just below certainty
_VERDICTS = ((CLOSE, "A strong promise"), (LIMITED, "A limited promise"), (math.inf, "A weak promise"))


def board_page(facts: CardFacts) -> str:
    """Renders the page as HTML that needs no other file.

    Args:
        facts: Facts of the run, as its card states them.
    """
    reasons = void_reasons(facts)
    epsilon, delta = facts.epsilon_spent, facts.plan.promise.delta
    values = {
        "name": facts.name,
        "void": bool(reasons),
        "verdict": NO_PROMISE if reasons else _verdict(epsilon),
        "weak": epsilon > LIMITED,
        "reasons": reasons,
        "warning": large_delta(delta, facts.plan.sampling.records, facts.protected),
        "words": "" if reasons else meaning(epsilon, delta, facts.one, "the trained model"),
        "one": facts.one,
        "unfinished": "" if facts.complete else _unfinished(facts),
        "right": 0 if reasons else right_of_100(epsilon, delta),
        "dots": [(12 * (number % 20) + 7, 12 * (number // 20) + 7) for number in range(100)],
        "protected": [] if reasons else list(_protected(facts)),
        "learnt": [] if reasons else list(_learnt(facts)),
        "questions": [] if reasons else list(questions(facts)),
        "epsilon": round_up(epsilon),
        "delta": round_up(delta),
        "run": dict(facts.provenance).get("Run id", ""),
    }
    return _page().render({name: _plain(value) for name, value in values.items()}, style=page_style()) + "\n"


def right_of_100(epsilon: float, delta: float) -> int:
    """Returns the largest mean number of right answers in 100 guesses whether one record (or unit) took part, rounded up."""
    return math.ceil(float(guess(float(round_up(epsilon)), delta).removesuffix("%")))


def _verdict(epsilon: float) -> str:
    return next(words for most, words in _VERDICTS if float(round_up(epsilon)) <= most)


def _unfinished(facts: CardFacts) -> str:
    return (
        f"The run is not finished: {facts.steps_charged} of {facts.plan.steps} steps were taken. If it is resumed, the promise "
        f"becomes weaker, up to epsilon {round_up(facts.plan.epsilon())}."
    )


def _protected(facts: CardFacts) -> Iterator[str]:
    what, count = "units" if facts.of_units else "records", facts.plan.sampling.records
    unit, _, meant = facts.unit.partition(": ")
    yield f"To each of the {count:,} training {what}, one at a time." + (f" {unit.capitalize()} is {meant}." if meant else "")
    if DECLARED_PUBLIC in facts.secrets:
        yield DECLARED_PUBLIC
    if not facts.of_units:
        several = []
        for number in (2, 5):
            worth = of_several(facts.epsilon_spent, facts.plan.promise.delta, number)
            limit = None if worth is None else guess(*worth)
            said = "all" if limit is None else "nearly all" if limit == _CERTAIN else f"up to {limit}"
            several.append(f"{said} may be right with {number} records")
        yield (
            "A person with several records is protected less. Of guesses whether this person took part, "
            f"{', and '.join(several)}."
        )
    yield "Not to the held-out records. They were used to test the model, and the test results have no noise added."
    yield "The promise holds against everybody who sees the model, now or later, whatever else they know."
    yield (
        "It does not hold against those who keep the records or run the machines: they can read the records, as before. While "
        f"the model was trained, the mode of trust was {facts.trust_mode}."
    )


def _learnt(facts: CardFacts) -> Iterator[str]:
    yield (
        f"Something about one {facts.one}, but not more than the picture above allows. If all records come from one clinic, "
        "the mere fact that a record was used tells something about the person."
    )
    yield (
        "What holds for many people. If the model learns that smokers fall ill more often, this also concerns smokers whose "
        "records were never used."
    )
    yield (
        "More, if other models were trained on the same records. A lifetime budget limits all trainings together. For these "
        f"records: {facts.budget or 'not stated'}."
    )
    yield (
        "Possibly everything, with a copy of the records or of the file secret.key: that file shows which noise was added. The "
        "run deletes it at its end, and whoever has backups must delete it there, too."
    )
    if STARTING_WEIGHTS in facts.not_protected:
        yield "What the starting weights know: the promise does not cover the data that they were trained on."
    for mark in facts.marks:
        if not mark.voids:
            yield mark.text
    if facts.audit:
        yield f"The result of attacks on this mechanism, which were tried with generated records: {facts.audit}"
    else:
        yield "Perhaps less than all this. This run's mechanism has not been attacked yet; `dpfed audit privacy` attacks it."


def _plain(value: object) -> object:
    """Returns texts without the backticks of Markdown."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.replace("`", "") if isinstance(value, str) else value


@functools.cache
def _page() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(resources.files("dpfed.report").joinpath("board.html").read_text(encoding="utf-8"))
