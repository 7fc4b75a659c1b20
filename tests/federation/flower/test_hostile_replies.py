"""What hostile sites send through real processes, over TLS, harms their own part of a step, and nobody else's."""

import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from benchmarks.federation_faults import found, start_worker  # noqa: E402
from benchmarks.hostile_site import done_in  # noqa: E402
from dpfed.artifacts.directory import RunDirectory  # noqa: E402
from dpfed.data.generated.shapes import shapes_store  # noqa: E402
from dpfed.data.store.division import divide_store, site_folder  # noqa: E402
from dpfed.federation.demo.loopback import RUN, SUPERLINK, loopback  # noqa: E402
from dpfed.federation.site.folder import SiteFolder  # noqa: E402
from dpfed.privacy.ledger import Ledger  # noqa: E402
from dpfed.protocol.journal import Journal  # noqa: E402
from tests.patience import Patience  # noqa: E402

ROOT, HERE = Path(__file__).resolve().parents[3], Path(__file__).parent
LONGEST = 600.0  # seconds
BOMB = 300 << 20  # bytes of the smaller one

pytestmark = pytest.mark.slow


def peak(processes):
    """Bytes of memory that processes had at most."""
    peaks = [0]
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:  # it ended meanwhile
            continue
        peaks += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return max(peaks)


def test_bombs_and_forgeries_cost_their_senders_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    divide_store(shapes_store(2_000, tmp_path / "records").path, tmp_path / "stores", 3, skew=0.8)
    parties, run = tmp_path / "parties", RunDirectory(tmp_path / "parties" / "run")
    found(parties, tmp_path / "stores", "central")
    first, second, third = map(site_folder, range(3))
    with tempfile.TemporaryDirectory(prefix="dpfed-") as place:
        sockets = {name: Path(place) / name / "door" for name in (first, second, third)}
        with loopback(Path(place) / "loopback", sockets) as federation:
            members = federation.members
            hostile = [sys.executable, HERE / "hostile_worker.py", parties / first, sockets[first], parties / second]
            members.start(f"{first}-worker", hostile, {"OMP_NUM_THREADS": "1"})
            for name in (second, third):
                start_worker(federation, parties, name, sockets[name])
            members.wait_for(f"{first}-worker", "ready", 300)
            federation.start_app(second, [sys.executable, HERE / "hostile_app.py"])
            federation.submit(ROOT, {"federation": str(parties / "coordinator"), "run": str(run.path)})
            patience, before, most = Patience(LONGEST), 0, 0
            while members.running(RUN) and not run.finished and not patience.ended:
                most = max(most, peak(members.descendants(SUPERLINK, "flwr-serverapp")))
                before = before or (most if run.journal.exists() else 0)  # all is loaded
                time.sleep(0.1)
            assert run.finished, members.text(RUN)[-4000:]
            assert "1 deeds left" in members.text(f"{second}-app") and "Traceback" not in members.text(RUN)
    ends = {line["step"]: line for line in Journal(run.journal).lines if line["event"] != "opened"}
    deeds = done_in(SiteFolder.open(parties / first))
    assert len(deeds) == 15
    for step, deed in deeds:
        assert first not in ends[step]["arrived"] and first in ends[step]["missing"], deed
    assert all(end["event"] == "collected" and third in end["arrived"] for end in ends.values())
    assert ends[max(ends)]["arrived"] == [first, second, third]  # who behaves is taken back
    assert Ledger.open(run.ledger).charged == len(ends)
    assert most - before < BOMB / 2, f"{most >> 20} MB, and {before >> 20} MB before the first step"
