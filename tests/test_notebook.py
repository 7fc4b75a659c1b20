"""In a notebook: a cell that trains is interrupted by the notebook's stop button, and the next cell resumes the run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tomli_w

from tests.patience import Patience, at_most

pytest.importorskip("ipykernel")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def kernel(tmp_path):
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(tmp_path / "socket"))
    manager.start_kernel(cwd=str(ROOT))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=at_most(120))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def ended(client, cell: str) -> dict:
    """What a cell's end says."""
    number = client.execute(cell)
    while (reply := client.get_shell_msg(timeout=at_most(180)))["parent_header"].get("msg_id") != number:
        pass
    return reply["content"]


@pytest.mark.slow
def test_a_cell_is_interrupted_and_the_next_resumes_the_run(kernel, tiny, tmp_path):
    manager, client = kernel
    tiny["privacy"]["steps"] = 400
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(tiny))
    run, ledger = tmp_path / "run", tmp_path / "run" / "ledger.jsonl"
    assert ended(client, f"import dpfed; config = dpfed.load_config({str(tmp_path / 'tiny.toml')!r})")["status"] == "ok"
    cell = client.execute(f"dpfed.pretrain(config, {str(run)!r})")
    patience = Patience(180)
    while not ledger.exists() or len(ledger.read_text().splitlines()) < 8:
        assert not patience.ended
        time.sleep(0.1)
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=at_most(60)))["parent_header"].get("msg_id") != cell:
        pass
    said = reply["content"]
    assert (said["status"], said["ename"]) == ("error", "Stopped") and "dpfed resume" in said["evalue"], said
    before = len(ledger.read_text().splitlines())
    assert not (run / "results.json").exists() and before < 400
    taken = ended(client, f"dpfed.pretrain(config, {str(run)!r})")  # a run is never begun over another
    assert (taken["status"], taken["ename"]) == ("error", "UserError") and "[" in taken["evalue"]
    last = ended(client, f"run = dpfed.resume({str(run)!r}); assert run.finished; dpfed.load(run.path)")
    assert last["status"] == "ok", last
    lines = [line for line in ledger.read_text().splitlines() if '"release"' in line]
    assert (run / "results.json").exists() and len(set(lines)) == len(lines)
