"""What private moments are said to come to, beside what runs came to."""

import json

import pytest
import tomli_w

# Records, epsilon, and R@10 over that without noise, mean of both directions: of tiles, and of symbols (docs/moments.md).
MEASURED = [(600, 1, 0.167), (600, 3, 0.344), (600, 8, 0.496), (1500, 3, 0.414), (3477, 1, 0.346), (3477, 8, 0.678)]
MEASURED += [(600, 1, 0.24), (600, 3, 0.37), (600, 8, 0.61), (2695, 1, 0.28), (2695, 3, 0.53), (2695, 8, 0.66)]


@pytest.fixture
def told(tiny_moments, dpfed, tmp_path):
    def tell(records, epsilon):
        tiny_moments["privacy"]["epsilon"] = epsilon
        (tmp_path / "mine.toml").write_text(tomli_w.dumps(tiny_moments))
        code, out, _ = dpfed("forecast", tmp_path / "mine.toml", "--records", records, "--json")
        assert code == 0
        return json.loads(out)

    return tell


@pytest.mark.parametrize(("records", "epsilon", "kept"), MEASURED)
def test_the_forecast_is_near_what_runs_came_to(told, records, epsilon, kept):
    found = told(records, epsilon)
    assert found["rows"][0]["kept"] == pytest.approx(kept, abs=0.15)


def test_more_records_and_more_epsilon_leave_more(told):
    rows = {row["what"]: row["kept"] for row in told(600, 3)["rows"]}
    assert rows["epsilon 1.00"] < rows["as configured"] < rows["epsilon 9.00"] < rows["6,000 records"]


def test_there_is_nothing_to_rehearse(tiny_moments, dpfed, tmp_path):
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(tiny_moments))
    code, _, err = dpfed("rehearse", tmp_path / "mine.toml", "--records", 600)
    assert code == 2 and "nothing to choose" in err
