"""An import that ends early leaves no store, and nothing that the next one does not remove; two never write one store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpfed.data.importers import import_records
from dpfed.errors import UserError
from tests.patience import exit_code

SLOW = """
import sys, time
from dpfed.cli import main
from dpfed.data.store.writing import StoreWriter

def flush(writer):
    print("a record is there", flush=True)
    time.sleep(600)

StoreWriter._flush = flush
sys.argv = ["dpfed", "data", "import", *sys.argv[1:]]
main()
"""


@pytest.fixture
def source(tmp_path: Path, pictures) -> Path:
    for number in range(3):
        pictures.file(tmp_path / "in" / "a" / f"{number}.png")
    return tmp_path / "in"


@pytest.fixture
def started(source: Path) -> Iterator[Callable[[Path], subprocess.Popen]]:
    """Starts an import that stops in the middle, and waits until it is there."""
    processes = []

    def start(dest: Path) -> subprocess.Popen:
        processes.append(subprocess.Popen([sys.executable, "-c", SLOW, source, dest], stdout=subprocess.PIPE, text=True))
        assert any("a record is there" in line for line in processes[-1].stdout)
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.long
def test_an_interrupted_import_leaves_nothing_and_begins_anew(tmp_path: Path, source: Path, started) -> None:
    process = started(dest := tmp_path / "new" / "s")
    process.send_signal(signal.SIGINT)
    assert exit_code(process, 20) == 130
    assert os.listdir(tmp_path) == ["in"]
    assert import_records(source, dest, size=8).counts["train"] == 3


@pytest.mark.long
def test_a_second_import_is_refused_and_a_killed_one_cleared(tmp_path, source, started):
    dest, said = tmp_path / "s[1]", []
    process = started(dest)
    (draft,) = tmp_path.glob(".s*.partial-*")
    with pytest.raises(UserError, match="file-locked"):
        import_records(source, dest, size=8)
    assert draft.is_dir()
    process.kill()
    process.wait()
    assert draft.is_dir() and not dest.exists()
    others = [tmp_path / ".s[1].partial-mine", tmp_path / ".s1.partial-00000000"]
    for other in others:
        other.mkdir()
    assert import_records(source, dest, size=8, say=said.append).counts["train"] == 3
    assert len(said) == 1 and draft.name in said[0]
    assert sorted(tmp_path.iterdir()) == sorted([source, dest, *others])


def test_runs_that_wait_find_the_store_of_the_first(tmp_path: Path, source: Path) -> None:
    counts, ends = [], []

    def take() -> None:
        try:
            counts.append(import_records(source, tmp_path / "s", size=8, wait=20).counts["train"])
        except UserError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [3] and len(ends) == 3 and all("[file-exists]" in end for end in ends)
    assert sorted(os.listdir(tmp_path)) == ["in", "s"]
