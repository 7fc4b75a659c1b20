"""What is seen of a run is what its files say, and of its files only those that may be seen."""

import sys
from types import SimpleNamespace

import pytest

from dpfed.live.figures import figures
from dpfed.live.scan import _READ, Scan
from dpfed.privacy.ledger import Ledger, Release
from dpfed.protocol.journal import ArrivalLog, Journal
from tests.live.conftest import advance, finish

SITES = ("north", "south")


def look(run, **options):
    scan = Scan(run.path, **options)
    return scan.one(scan.single)


def test_steps_and_epsilon_are_those_of_the_ledger(make, plan):
    one = look(make(done=3)).run_state
    assert (one.done, one.planned) == (3, 6)
    assert one.epsilon == plan.epsilon(3) and one.epsilon_planned == plan.epsilon()
    assert one.spent[-1] == (3, plan.epsilon(3)) and one.expected[-1] == (6, plan.epsilon())


def test_a_replayed_step_is_paid_for_once_and_shown(make, plan):
    run = make(done=3)
    ledger = Ledger.open(run.ledger)
    ledger.note_resumed(2)
    ledger.note_replay(ledger.release_of(2))
    run.append(run.metrics, {"step": 1, "epsilon": 7.2})  # no curve follows what another file says
    assert look(run).run_state.spent == [(0, 0.0), *((step, plan.epsilon(step)) for step in (1, 2, 3))]
    shown = {figure.key: figure.value for figure in figures(look(run))}
    (replayed,) = (figure for figure in figures(look(run)) if figure.key == "steps_replayed")
    assert replayed.help == "Number of times that a charged release was computed again, bit for bit, at no further cost"
    assert (shown["steps_replayed"], shown["interruptions"], shown["epsilon_spent"]) == (1, 1, plan.epsilon(3))


def test_a_fixed_seed_leaves_no_epsilon(make):
    seen = look(make(marks={"fixed_seed": True}))
    assert seen.run_state.epsilon is None and not seen.run_state.spent and not seen.run_state.expected
    assert "No guarantee" in seen.run_state.guarantee
    assert next(figure for figure in figures(seen) if figure.key == "epsilon_spent").value is None


def test_a_void_card_wins_over_the_ledger(make):
    run = make(done=6)
    finish(run, {}, "# Privacy card of tiny: no privacy guarantee holds\n\n**No privacy guarantee holds.** It was broken.\n")
    assert look(run).run_state.epsilon is None


def test_sites_of_a_federation(make):
    run = make(done=2, sites=SITES)
    ledger, journal = Ledger.open(run.ledger), Journal(run.journal)
    journal.write("opened", 2)
    journal.write("discarded", 2, reason="1 of 2 sites answered", arrived=["north"], missing={"south": "not there"})
    advance(run, ledger, 3, SITES)
    one = look(run).run_state
    north, south = one.sites
    assert (north.answered, north.missed, north.past) == (3, 0, ("answered", "answered", "discarded", "answered"))
    assert (south.answered, south.missed, south.last_reason) == (3, 1, "step 2: not there")
    assert one.discarded == [(2, "1 of 2 sites answered")]


def test_who_is_awaited_and_how_long_the_others_took(make):
    run, now = make(done=1, sites=SITES), [10.0]
    arrival_log = ArrivalLog(run.arrival_log, lambda: now[0])
    Journal(run.journal).write("opened", 1)
    arrival_log.ask(1, SITES, 120.0)
    now[0] = 12.5
    arrival_log.came(1, "south")
    seen = look(run)
    one, shown = seen.run_state, {figure.key: figure for figure in figures(seen)}
    assert (one.awaited[0], one.awaited[1].awaited) == (1, ["north"])
    assert one.sites[1].seconds == 2.5 and one.sites[0].seconds is None
    assert 100 < shown["sites_awaited_seconds"].value <= 120 and shown["sites_awaited_seconds"].shown == "2 min at most"
    arrival_log.ask(2, ["north"])  # there are not enough sites to open the next step
    Journal(run.journal).write("collected", 1, arrived=["south"], missing={}, noise_of_sites=1.0)
    assert look(run).run_state.awaited[0] == 2 and "sites_awaited_seconds" not in {one.key for one in figures(look(run))}
    assert run.arrival_log.stat().st_mode & 0o777 == 0o600


def test_nothing_but_the_files_that_may_be_seen_is_opened(make, tmp_path):
    run = make(done=3, sites=SITES)
    for name in ["audit/losses.json", "releases/step-3", "checkpoints/step-3.safetensors", "sites/north.jsonl"]:
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("SENTINEL\n")
    opened = []
    watching = [True]
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if watching[0] and event == "open" else None)
    for figure in figures(look(run)):
        assert "SENTINEL" not in figure.shown
    watching[0] = False
    inside = {name.removeprefix(f"{run.path}/") for name in opened if name.startswith(str(run.path))}
    assert inside and inside <= {*_READ, ".lock-holder"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ledger.jsonl", "{}\n"),
        ("metrics.jsonl", "[1]\n"),
        ("federation.jsonl", '{"event": 3, "chain": "x"}\n'),
        ("federation.jsonl", '{"event": "opened", "step": NaN}\n'),
        ("federation.jsonl", '{"event": "opened", "step": "a"}\n'),
        ("federation.jsonl", '{"event": "opened", "step": 1e999}\n'),
        ("federation.jsonl", '{"event": "discarded", "step": 0, "missing": 3}\n'),
        ("config.toml", "= ="),
        ("terms.json", "[" * 100_000),
        ("results.json", "{}"),
        ("privacy_card.md", "nothing"),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_seen(make, tmp_path, name, text):
    run = make("bad")
    make("good")
    (run.path / name).write_text(text)
    bad, good = Scan(tmp_path / "runs").all()
    assert bad.state == "damaged" and name in bad.trouble and good.state == "running"


def test_runs_are_found_in_a_folder_but_none_hidden_or_linked(make, tmp_path):
    make("sweep/a")
    make("b")
    make(".hidden/inside/c")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "runs" / "b")
    (tmp_path / "runs" / "empty").mkdir()
    assert list(Scan(tmp_path / "runs").folders()) == ["b", "sweep/a"]


def test_the_curve_of_a_site_follows_what_its_ledger_says(tmp_path, plan):
    """A site keeps no metrics; a straight line up to what was spent would say what never held."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.toml").write_text('name = "north"\nbudget = 8.0\n')
    ledger = Ledger.create(folder / "ledger.jsonl", plan)
    for step in (0, 2, 4):  # it was not there at steps 1 and 3
        ledger.charge(Release(step, f"{step:032x}"))
    seen = look(SimpleNamespace(path=folder)).run_state
    paid = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3}
    assert seen.spent == [(step, plan.epsilon(paid[step]) if step else 0.0) for step, _ in seen.spent]
    assert len(seen.spent) > 3 and seen.spent[-1] == (5, plan.epsilon(3))


def test_runs_far_down_are_found_and_what_is_left_out_is_said(make, dpfed, tmp_path, monkeypatch):
    pytest.importorskip("starlette")
    from dpfed.live.rendering import Pages

    make("a/b/c/d/near", done=1)
    make("1/2/3/4/5/6/7/eighth", done=1)
    far = make("1/2/3/4/5/6/7/8/far", done=1)
    scan = Scan(tmp_path / "runs")
    assert list(scan.folders()) == ["1/2/3/4/5/6/7/eighth", "a/b/c/d/near"]
    assert "such as 1/2/3/4/5/6/7/8:" in scan.left_out
    for words in ((), ("--json",)):
        code, out, error = dpfed("watch", tmp_path / "runs", "--once", *words)
        assert code == 0 and "1/2/3/4/5/6/7/8" in (error if words else "".join(out.split("\n")))
    assert scan.left_out in Pages("runs").runs(scan.all(), scan.left_out)
    given = Scan(far.path.parent)  # as the sentence says
    assert list(given.folders()) == ["far"] and not given.left_out
    monkeypatch.setattr("dpfed.live.scan._MOST", 3)
    assert not scan.folders() and "were not searched" in scan.left_out
