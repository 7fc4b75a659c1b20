"""A site is served until SIGTERM or Ctrl-C: while it loads, they end it at once, and then in good order."""

import signal
import time

import pytest

from dpfed.config import parse_config
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.site import serving
from dpfed.federation.site.folder import SiteFolder
from dpfed.protocol.terms import Terms

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture
def site(tiny, shapes, tmp_path):
    tiny["privacy"]["accountant"] = "rdp"
    made = [SiteFolder.create(tmp_path / name, name, shapes.path) for name in ("north", "south")]
    terms = CoordinatorFolder.create(tmp_path / "chest", parse_config(tiny), [one.card for one in made]).terms
    made[0].join(Terms.load(terms))
    return made[0]


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_loading_site_stops_at_once_and_can_be_served_again(number, code, site, dpfed, monkeypatch):
    def loading(*_):
        signal.raise_signal(number)
        time.sleep(30)

    monkeypatch.setattr(serving, "load_site", loading)
    status, out, error = dpfed("site", "serve", site.path)
    assert status == code and error.splitlines()[-1] == "stopped." and "ready" not in out
    monkeypatch.undo()
    monkeypatch.setattr(serving, "serve", lambda *_: None)
    serving.serve_site(site, site.socket, print)


@pytest.mark.parametrize("number", [number for number, _ in SIGNALS])
def test_a_site_that_answers_ends_when_the_answer_is_done(number, site, dpfed, monkeypatch):
    done = []

    def serve(socket, handle, stop, *_):
        signal.raise_signal(number)
        time.sleep(0.2)  # the answer in hand
        done.append(stop.is_set())

    monkeypatch.setattr(serving, "serve", serve)
    before = signal.getsignal(number)
    code, out, error = dpfed("site", "serve", site.path)
    assert (code, done) == (0, [True]) and "ready" in out, error
    assert signal.getsignal(number) is before
