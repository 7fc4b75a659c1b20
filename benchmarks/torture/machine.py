"""Injects faults into local runs: kills at random moments, full disks, read-only folders, and damaged checkpoints.

Each run is then resumed, and compared with an undisturbed run of the same seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.torture.lives import Bytes, Clock, Death, End, Operation, Quota, Tally, live
from benchmarks.torture.undisturbed import Outcome, outcome_of, wrong_at_the_end, wrong_on_the_way
from dpfed.data.generated.shapes import write_shapes
from dpfed.training.checkpoint import Checkpoints

STEPS = 24
FULL, READ_ONLY, DAMAGED = "the disk is full", "the folder is read-only", "the newest checkpoint is damaged"
_DISK = 16  # MiB, of the disk that gets full
_BLOCK = 4096
_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda content: content[:999] + bytes([content[999] ^ 1]) + content[1000:],
    "cut": lambda content: content[: len(content) // 3],
    "zeros": lambda content: bytes(len(content)),
    "empty": lambda content: b"",
}


class Machine:
    """A configuration, an undisturbed run of it, and the faults of further runs.

    Args:
        folder: Folder for all files, on the storage that is tested.
        dice: Random generator that decides which fault happens when.
    """

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder, self._dice = folder, dice
        self._config = write_config(folder)
        self._number = 0
        os.environ["DPFED_BUDGETS"] = str(folder / "budgets")  # not the user's
        run, tally = folder / "undisturbed", folder / "operations.txt"
        self._train(folder / "first")  # the process that all others are forked from imports everything now
        end = self._train(run, Tally(tally))
        if end.code:
            raise SystemExit(end.text)
        self.undisturbed: Outcome = outcome_of(run)
        self._seconds, self._operations = end.seconds, int(tally.read_text())
        self._sizes = sorted(path.stat().st_size for path in run.rglob("*") if path.is_file())

    def kill(self) -> dict[str, Any]:
        """Kills a run at a random moment, sometimes again after it was resumed, and then lets it finish."""
        run, lives = self._place(), []
        wrong: list[str] = []
        for _ in range(self._dice.choice([1, 1, 2, 3])):
            death = self._death()
            end = self._train(run, death)
            charged, problems = wrong_on_the_way(run, self.undisturbed)
            wrong += problems
            lives.append({"what": type(death).__name__, "ended": end.code, "after": charged})
        return self._told(run, {"lives": lives}, wrong)

    def fill(self) -> dict[str, Any]:
        """Gives a run a disk with a random amount of room, on which it may stop, and then more room."""
        with small_disk(self._place()) as disk:
            if disk is None:  # where nobody may mount one, no file of the run may become larger than this
                run = self._place()
                return self._refused(run, FULL, self._train(run, Quota(self._dice.choice(self._sizes))))
            with filled(disk, room=self._dice.randrange(sum(self._sizes) + len(self._sizes) * _BLOCK)):
                end = self._train(disk / "run")
            return self._refused(disk / "run", FULL, end)

    def lock(self) -> dict[str, Any]:
        """Makes the folder of a run read-only at a random moment, and later writable again."""
        run, moment = self._place(), self._dice.uniform(0.2, 1.0) * self._seconds

        def take(now: float) -> bool:
            if now < moment or not run.is_dir():
                return True
            _permit(run, write=False)
            return False

        end = self._train(run, meanwhile=take)
        again = self._train(run)  # nobody can go on
        if run.is_dir():
            _permit(run, write=True)
        return self._refused(run, READ_ONLY, end, again)

    def damage(self) -> dict[str, Any]:
        """Kills a run and damages its newest checkpoint."""
        run = self._place()
        while True:
            end = self._train(run, self._death())
            paths = Checkpoints(run / "checkpoints", 2).paths()
            if len(paths) > 1 and not (run / "results.json").exists():
                break
            shutil.rmtree(run, ignore_errors=True)
        charged, wrong = wrong_on_the_way(run, self.undisturbed)
        how = self._dice.choice(list(_DAMAGES))
        paths[-1].write_bytes(_DAMAGES[how](paths[-1].read_bytes()))
        shutil.rmtree(run / "commits", ignore_errors=True)  # else the run goes on from the state of its last commit
        told = self._told(run, {"what": f"{DAMAGED}: {how}", "ended": end.code, "after": charged}, wrong)
        if f"{paths[-1].name} is damaged: resuming after step" not in told["said"]:
            told["wrong"].append("nobody said that a checkpoint is damaged")
        return told

    def _refused(self, run: Path, what: str, *ends: End) -> dict[str, Any]:
        """Checks that a run that met a full disk or a read-only folder ended with a sentence, and resumes the run."""
        charged, wrong = wrong_on_the_way(run, self.undisturbed)
        for end in ends:
            wrong += _no_sentence(end)
        said = ends[0].text.strip().splitlines()[-1] if ends[0].code else ""
        return self._told(run, {"what": what, "ended": ends[0].code, "after": charged, "refusal": self._short(said)}, wrong)

    def _train(self, run: Path, death: Death | None = None, meanwhile: Callable[[float], bool] | None = None) -> End:
        words = ["pretrain", self._config, "--run", run, "--resume"]
        return live(words, run, self._folder / "output.txt", death, meanwhile)

    def _death(self) -> Death:
        kind = self._dice.choice([Clock, Operation, Bytes])
        if kind is Clock:
            return Clock(self._dice.uniform(0, self._seconds))
        if kind is Operation:
            return Operation(self._dice.randint(1, self._operations))
        return Bytes(self._dice.randrange(1, max(2, self._dice.choice(self._sizes))))

    def _place(self) -> Path:
        self._number += 1
        return self._folder / f"run-{self._number}"

    def _told(self, run: Path, facts: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
        """Resumes a run, compares it with the undisturbed run, and returns `facts` with all that is wrong."""
        end = self._train(run)
        if end.code:
            wrong = [*wrong, f"the resume ended with {end.code}: {end.text[-2000:]}"]
        else:
            wrong = [*wrong, *wrong_at_the_end(run, self.undisturbed)]
            shutil.rmtree(run)
        notes = " ".join(line for line in end.text.splitlines() if "damaged" in line)
        return {**facts, "said": self._short(notes), "wrong": wrong}

    def _short(self, text: str) -> str:
        """Returns a text without the paths of this machine."""
        return re.sub(rf"{re.escape(str(self._folder))}\S*?/?(?=[\w.-]*[ :;`])", "", text)


def write_config(folder: Path) -> Path:
    """Writes records, and the configuration of a run of a second; returns the path of the configuration."""
    write_shapes(folder / "store", train=240, validation=0, test=60)
    tree = {
        "name": "torture",
        "data": {"source": "store", "path": str(folder / "store"), "size": 16},
        "views": {"crop_scale": [0.5, 1.0], "jitter": 0.5},
        "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 8},
        "bounding": {"group_size": 4, "engine": "loop"},
        "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 32, "steps": STEPS, "seed": 3},
        "optimizer": {"learning_rate": 3e-3, "ema": 0.9},
        "training": {"checkpoint_every": 6, "commit_every": 2, "device": "cpu"},
        "evaluation": {"tasks": ["retrieval"], "every": 5, "records": 40},
    }
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(tree), encoding="utf-8")
    return path


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mounts a small disk in memory for the block, and yields its folder; ``None``: this user may not mount one."""
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}m", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def filled(disk: Path, room: int = 0) -> Iterator[None]:
    """Fills a disk for the block, except `room` bytes."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - room)))
    try:
        yield
    finally:
        ballast.unlink()


def _permit(run: Path, write: bool) -> None:
    """Makes a run's folder and files writable or read-only."""
    for path in [run, *run.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):
            mode = path.stat().st_mode
            path.chmod(mode | stat.S_IWUSR if write else mode & ~0o222)


def _no_sentence(end: End) -> list[str]:
    """Returns complaints about a run's end. Right are exit code 0, or exit code 2 with one sentence and no traceback."""
    last = (end.text.strip().splitlines() or [""])[-1]
    if end.code == 0 or (end.code == 2 and last.startswith("error: ") and "Traceback" not in end.text):
        return []
    return [f"it ended with {end.code}: {end.text[-2000:]}"]
