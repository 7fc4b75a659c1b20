"""A monitor sees the figures that the page shows."""

import pytest

from dpfed.live.figures import figures
from dpfed.live.scan import Scan
from dpfed.protocol.journal import ArrivalLog, Journal
from tests.live.conftest import finish

parser = pytest.importorskip("prometheus_client.parser")
pytest.importorskip("httpx")
testclient = pytest.importorskip("starlette.testclient")

TOKEN = "t" * 24
SITES = ("north", 'so"u\nth')


@pytest.fixture
def monitor(make, tmp_path):
    from dpfed.live.access import Access
    from dpfed.live.app import application
    from dpfed.live.retrieval import Retrieval

    make("one", done=3)
    run = make("fed", done=2, sites=SITES)
    Journal(run.journal).write("opened", 2)
    arrival_log = ArrivalLog(run.arrival_log, iter([0.0, 0.0, 0.0, 2.5, 2.5, 2.5]).__next__)
    arrival_log.ask(2, SITES)
    arrival_log.came(2, "north")
    app = application(Scan(tmp_path / "runs"), Access(0, TOKEN), Retrieval())
    return testclient.TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {TOKEN}"})


def samples(text):
    values = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, key
            values[key] = sample.value
    return values


def test_every_figure_is_there_with_the_pages_value(monitor, tmp_path):
    answer = monitor.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    values, expected = samples(answer.text), {}
    for seen in Scan(tmp_path / "runs").all():
        for figure in figures(seen):
            if figure.value is not None:
                expected[f"dpfed_{figure.key}", frozenset({"run": seen.name, **figure.labels}.items())] = figure.value
    assert len(expected) > 30 and {key: values[key] for key in expected} == expected
    assert {name for name, _ in values.keys() - expected.keys()} == {"dpfed_state"}


def test_the_sites_of_a_step_that_is_open(monitor):
    values = samples(monitor.get("/metrics?run=fed").text)
    assert values["dpfed_site_awaited", frozenset({("run", "fed"), ("site", SITES[1])})] == 1
    assert values["dpfed_site_seconds", frozenset({("run", "fed"), ("site", "north")})] == 2.5
    assert not any(("run", "one") in labels for _, labels in values)


def test_a_void_run_has_no_epsilon(make, tmp_path, monitor):
    make("void", marks={"fixed_seed": True})
    names = {name for name, labels in samples(monitor.get("/metrics").text) if ("run", "void") in labels}
    assert "dpfed_steps_done" in names and not any("epsilon" in name for name in names)


def test_health(make, monitor, tmp_path, monkeypatch):
    assert monitor.get("/healthz").json() == {"well": True, "runs": {"fed": "running", "one": "running"}}
    assert monitor.get("/healthz?run=none").status_code == 503
    make("bad").ledger.write_text("x\n")
    assert monitor.get("/healthz").status_code == 503 and monitor.get("/healthz?run=one").status_code == 200
    monkeypatch.setattr("dpfed.live.scan._FRESH", -1.0)
    assert monitor.get("/healthz?run=one").json() == {"well": False, "runs": {"one": "stopped"}}
    done = make("done", done=6)
    finish(done, {"epsilon": 8.0, "delta": 1e-3}, "# Privacy card of tiny\n\n**It is private.**\n")
    assert monitor.get("/healthz?run=done").status_code == 200


def test_no_figure_without_the_token(monitor):
    for address in ("/metrics", "/healthz"):
        assert monitor.get(address, headers={"Authorization": "Bearer no"}).status_code == 401
