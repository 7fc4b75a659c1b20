"""Numbers in a run's files: JSON knows NaN and Infinity, and neither passes for something that was spent."""

import json
import math

import pytest

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.provenance import wrong_provenance
from dpfed.artifacts.verification import ledger_of
from dpfed.artifacts.view import results_in
from dpfed.errors import UserError
from dpfed.privacy.ledger import Ledger, Release
from dpfed.privacy.plan import PrivacyPlan
from tests.artifacts.test_recorded import FACTS
from tests.written_run import CLIPPED, MADE

PLAN = PrivacyPlan.of(1000, 50, 5, 1.0, steps=100, noise_multiplier=1.5, delta=1e-4, accountant="rdp")


@pytest.fixture
def run(tmp_path):
    """A run whose ledger holds two steps."""
    run = RunDirectory(tmp_path)
    ledger = Ledger.create(run.ledger, PLAN)
    for step in range(2):
        ledger.charge(Release(step, "d"))
    ledger.note_artifacts("c", "m")
    return run


def write(run, **privacy):
    facts = {"epsilon": 1.0, "delta": 1e-4, "steps_charged": 2, **CLIPPED, **privacy}
    run.results.write_text(json.dumps({"privacy": facts, "evaluations": [], "run": MADE}))


@pytest.mark.parametrize("said", [math.nan, math.inf, 3.0, "3", True, None])
def test_no_ledger_is_believed_beside_results_without_steps(run, said):
    write(run)
    assert ledger_of(run).charged == 2
    write(run, steps_charged=said)
    with pytest.raises(UserError, match="results-steps"):
        ledger_of(run)
    write(run, steps_charged=3)
    with pytest.raises(UserError, match="run-ledger-short"):
        ledger_of(run)


@pytest.mark.parametrize(
    "privacy",
    [{"epsilon": math.nan}, {"epsilon": math.inf}, {"epsilon": -1.0}, {"delta": math.nan}, {"delta": 1.5}, {"delta": 0}],
)
def test_results_with_a_promise_that_is_none_are_damaged(run, privacy):
    write(run, **privacy)
    with pytest.raises(UserError, match="results-privacy-range"):
        results_in(run.results)
    write(run, epsilon=None)
    assert results_in(run.results)["privacy"]["epsilon"] is None


@pytest.mark.parametrize("changes", [{"epsilon": math.nan}, {"epsilon": math.inf}, {"epsilon": -1.0}, {"delta": math.nan}])
def test_starting_weights_with_a_promise_that_is_none_are_damage(changes):
    facts = {**FACTS, "start": {**FACTS["start"], "trained": [FACTS["start"]["trained"][1] | changes]}}
    assert wrong_provenance(FACTS) is None and wrong_provenance(facts) == f"start.trained.0.{next(iter(changes))}"
