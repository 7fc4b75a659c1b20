"""How long sites take is seen while a federation is at work, and is in no file afterwards."""

import itertools
import json

import pytest

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.federation import simulation as rooms
from dpfed.federation.simulated import Simulation
from dpfed.protocol.journal import ArrivalLog, read_arrival_log


def clock(of):
    """Seconds that grow by so many at each look."""
    seconds = itertools.count(step=of)
    return lambda: next(seconds)


def test_answers_are_seen_as_they_come(tmp_path):
    file, now = tmp_path / "arrivals.json", [0.0]
    arrival_log = ArrivalLog(file, lambda: now[0])
    arrival_log.ask(4, ["a", "b"])
    assert read_arrival_log(file)[4].awaited == ["a", "b"] and file.stat().st_mode & 0o777 == 0o600
    now[0] = 1.5
    arrival_log.came(4, "b")
    assert read_arrival_log(file)[4].awaited == ["a"] and read_arrival_log(file)[4].seconds == {"b": 1.5}
    now[0] = 1.75
    arrival_log.came(4, "a")
    assert read_arrival_log(file)[4].awaited == []


@pytest.mark.parametrize(("sites", "kept"), [(3, 20), (500, 4), (5000, 1)])
def test_only_the_last_steps_are_kept(tmp_path, sites, kept):
    arrival_log = ArrivalLog(tmp_path / "arrivals.json")
    for step in range(30):
        arrival_log.ask(step, [f"site-{number}" for number in range(sites)])
    assert list(read_arrival_log(tmp_path / "arrivals.json")) == list(range(30 - kept, 30))


def content(path):
    """What a file says. The names in the header of a safetensors file come in any order."""
    whole = path.read_bytes()
    if path.suffix != ".safetensors":
        return whole
    end = 8 + int.from_bytes(whole[:8], "little")
    return json.dumps(json.loads(whole[8:end]), sort_keys=True).encode() + whole[end:]


def folders(monkeypatch, tmp_path, tiny, name, seconds):
    monkeypatch.setattr(rooms, "ArrivalLog", lambda path: ArrivalLog(path, clock(seconds)))
    run = rooms.simulate(parse_config(tiny), tmp_path / name, Simulation(sites=2, trust="distributed"))
    files = {path.relative_to(run.path).as_posix(): content(path) for path in run.path.rglob("*") if path.is_file()}
    return {name: said for name, said in files.items() if name not in (".lock", ".lock-holder", "provenance.json")}


@pytest.mark.long
def test_no_file_of_a_run_depends_on_how_long_sites_took(monkeypatch, tmp_path, tiny):
    tiny["privacy"] |= {"seed": 3, "steps": 2}
    tiny["evaluation"] = {"split": "none"}
    slow, fast = (folders(monkeypatch, tmp_path, tiny, name, of) for name, of in (("slow", 7.0), ("fast", 0.001)))
    named = {"results.json", "privacy_card.md", "for_the_board.html", "report.html", "ledger.jsonl"}  # they name the run's id
    assert {name for name in slow if slow[name] != fast[name]} <= named | {"model/model.json"}
    said = b"".join(content for name, content in slow.items() if name.endswith((".json", ".jsonl")))
    assert b"arrivals" not in said and b"seconds" not in said


@pytest.mark.parametrize("end", [UserError("enough"), KeyboardInterrupt(), OSError("disk")])
def test_times_go_with_the_process_however_it_ends(monkeypatch, tmp_path, tiny, end):
    tiny["evaluation"] = {"split": "none"}
    tiny["privacy"] |= {"steps": 4}
    there = []

    class Ending(ArrivalLog):
        def ask(self, step, sites, seconds):
            super().ask(step, sites, seconds)
            there.append(self._path.is_file())
            if step == 2:
                raise end

    monkeypatch.setattr(rooms, "ArrivalLog", Ending)
    with pytest.raises(type(end)):
        rooms.simulate(parse_config(tiny), tmp_path / "run", Simulation(sites=2))
    assert there == [True] * 3 and not list((tmp_path / "run").glob("*arrivals*"))
