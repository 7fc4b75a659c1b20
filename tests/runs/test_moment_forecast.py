"""What private moments are said to come to, beside what runs came to."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.record import figures
from dpfed.runs.moment_forecast import MomentRow


@pytest.fixture
def told(tiny_moments, dpfed, tmp_path):
    def tell(records, epsilon):
        tiny_moments["privacy"]["epsilon"] = epsilon
        (tmp_path / "mine.toml").write_text(tomli_w.dumps(tiny_moments))
        code, out, _ = dpfed("forecast", tmp_path / "mine.toml", "--records", records, "--json")
        assert code == 0
        return json.loads(out)

    return tell


@pytest.mark.parametrize("name", ["symbols", "tiles", "icons", "cifar10"])
def test_the_forecast_is_near_what_runs_came_to(name):
    entry = figures("moments")["sets"][name]
    candidates = 10 if entry["measure"] == "accuracy" else entry["held out"]  # classes, or pictures
    rows = [row for row in entry["rows"] if row["method"] == "moments" and row["epsilon"] >= 1]
    clean = {row["records"]: np.mean(row["figures"]) for row in entry["rows"] if row["method"] == "no privacy"}
    for row in rows:
        gain = clean[row["records"]] - entry["public"]
        noise = SimpleNamespace(multiplier=sigma_of(row["epsilon"], row["records"]))
        plan = SimpleNamespace(sampling=SimpleNamespace(records=row["records"]), noise=noise)
        expected = entry["public"] + gain * MomentRow("", plan, candidates).kept
        assert np.mean(row["figures"]) == pytest.approx(expected, abs=0.08), row


@pytest.mark.parametrize("name", ["symbols", "tiles", "icons", "cifar10"])
def test_so_is_the_forecast_with_a_public_basis(name):
    entry = figures("moment-basis")["sets"][name]
    candidates = 10 if entry["measure"] == "accuracy" else entry["held out"]
    rows = [row for row in entry["rows"] if row["basis"] == "generated"]
    clean = {row["records"]: np.mean(row["figures"]) for row in rows if row["epsilon"] is None}
    known = [row for row in rows if row["epsilon"] is not None and row["epsilon"] >= 1]
    assert len(known) >= 3 * 4
    for row in known:
        noise = SimpleNamespace(multiplier=sigma_of(row["epsilon"], row["records"]))
        plan = SimpleNamespace(sampling=SimpleNamespace(records=row["records"]), noise=noise)
        gain = clean[row["records"]] - entry["public"]
        expected = entry["public"] + gain * MomentRow("", plan, candidates, public=True).kept
        assert np.mean(row["figures"]) == pytest.approx(expected, abs=0.06), row


def sigma_of(epsilon, records):
    """Of one Gaussian release of sensitivity 1 (Balle and Wang 2018)."""

    def over(sigma):
        delta = norm.cdf(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-1 / (2 * sigma) - epsilon * sigma)
        return delta - 1 / (records * math.log(records))

    return brentq(over, 1e-2, 1e3)


@pytest.mark.long
def test_more_records_and_more_epsilon_leave_more(told):
    told_rows = told(600, 3)["rows"]
    rows = {row["what"]: row["kept"] for row in told_rows}
    assert {row["dimensions"] for row in told_rows} == {None}  # aligned towers keep all
    assert rows["epsilon 1.00"] < rows["as configured"] < rows["epsilon 9.00"] < rows["6,000 records"]


def test_a_forecast_that_measures_nothing_takes_no_public_records(tiny_moments, dpfed, tmp_path):
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(tiny_moments))
    code, out, err = dpfed("forecast", tmp_path / "mine.toml", "--records", 600, "--public", "nowhere")
    assert code == 2 and "--public nowhere has no effect with bounding.method = 'moments'" in err
    assert "forecast-public-unused" in err and "sigma" not in out


def test_there_is_nothing_to_rehearse(tiny_moments, dpfed, tmp_path):
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(tiny_moments))
    code, _, err = dpfed("rehearse", tmp_path / "mine.toml", "--records", 600)
    assert code == 2 and "rehearse-moments" in err
