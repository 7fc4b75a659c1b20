"""Three sites and a coordinator on machines of their own, over TLS: cuts, restarts, other addresses, wrong clocks."""

import re
import time

import pytest

pytest.importorskip("flwr")

from dpfed.data.generated.shapes import write_shapes  # noqa: E402
from dpfed.privacy.ledger import Ledger  # noqa: E402
from tests.apart.federation_machines import SITES, Federation, no_proxy_server  # noqa: E402
from tests.apart.machines import no_other_clock, until  # noqa: E402

STEPS, DEADLINE = 5000, 20
ALL = list(SITES)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(no_proxy_server()), reason=no_proxy_server())]


@pytest.fixture(scope="module")
def federation(network, place):
    write_shapes(place / "shapes", train=600, validation=0, test=100)
    made = Federation(network, place, place / "shapes", STEPS, trust="distributed", drops=1, deadline=DEADLINE)
    until(made.in_step(*ALL), "step of all sites", 900)
    return made


@pytest.fixture(autouse=True)
def nothing_is_hidden(federation):
    """Whatever happened: who has sent a sum has paid for it, and so has the run for every step that it opened."""
    yield
    lines = federation.journal()
    opened = {line["step"] for line in lines if line["event"] == "opened"}
    closed = {line["step"] for line in lines if line["event"] in ("collected", "discarded")}
    ledger = Ledger.open(federation.chest / "run" / "ledger.jsonl")
    assert all(ledger.release_of(step) for step in closed) and opened - closed <= {max(opened)}
    for name, place in federation.places.items():
        paid = Ledger.open(place / "site" / "ledger.jsonl")
        assert all(paid.release_of(line["step"]) for line in lines if name in line.get("arrived", []))


def seconds_until(looked_for, what, most=200):
    began = time.monotonic()
    until(looked_for, what, most)
    print(f"{what}: after {time.monotonic() - began:.0f} s")


@pytest.mark.parametrize("seconds", [5, 30, 300])
def test_a_site_whose_link_is_cut_comes_back_by_itself(federation, network, seconds):
    network.cut(federation.sites["north"])
    time.sleep(seconds)
    network.mend(federation.sites["north"])
    seconds_until(federation.in_step(*ALL), f"all sites after a cut of {seconds} s", 700)
    if seconds > DEADLINE:
        assert (
            f"within {DEADLINE} s: it is asked again in" in federation.said()
            and "north takes part from step" in federation.said()
        )


def test_a_site_that_gets_another_address_comes_back_by_itself(federation):
    federation.sites["south"].move("10.77.0.77")
    seconds_until(federation.in_step(*ALL), "all sites after another address")


def test_a_restarted_coordinator_goes_on_and_pays_the_open_step(federation, network):
    opened = federation.journal("opened")[-1]["step"]
    federation.coordinator.kill()
    time.sleep(5)
    federation.coordinator.boot(network)
    federation.start_coordinator()
    seconds_until(federation.in_step(*ALL), "all sites after a restart of the coordinator's machine", 400)
    assert federation.journal("opened")[-1]["step"] > opened


@pytest.mark.skipif(bool(no_other_clock()), reason=no_other_clock())
@pytest.mark.parametrize("seconds", [600, -600])
def test_a_site_whose_clock_is_wrong_is_left_out_and_told_why(federation, network, seconds):
    west, word = federation.sites["west"], "ahead" if seconds > 0 else "behind"
    west.kill()
    west.clock, before = seconds, len(west.text("node"))
    west.boot(network)
    federation.start_site("west")
    try:
        until(federation.in_step("north", "south"), "step without west", 200)
        until(lambda: re.search(rf"was not let in: clock: \d+ s {word}", west.text("node")[before:]), "reason", 200)
        assert federation.doctor("west")["clock"]["state"] == "bad"
    finally:
        west.kill()
        west.clock = 0
        west.boot(network)
        federation.start_site("west")
    seconds_until(federation.in_step(*ALL), f"all sites after a clock {word}")


def test_a_site_that_is_gone_for_good_does_not_stop_the_others(federation):
    federation.sites["west"].kill()
    seconds_until(federation.in_step("north", "south"), "the others, without one that is gone")
    assert "continues without 1 of 3 sites. west:" in federation.said()
