"""The command; see `benchmarks.gpu`. It needs nothing but Python: packages may still lie in wheels."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu import loads, pieces, wheels

STAGES = range(5)
_DONE, _FAILED, _UNFINISHED = 0, 4, 3  # what `benchmarks.gpu.worker` ends with
_WORK = Path(tempfile.gettempdir()) / "dpfed-gpu"
_FILES, _BYTES = 8, 64 << 20  # that come back from a call
# What must be importable before anything begins; what they need themselves shows when they are imported.
_IMPORTS = (
    "torch torchvision numpy PIL pyarrow pydantic cryptography dp_accounting scipy sklearn matplotlib jinja2 typer".split()
)
_IMPORTS += "rich safetensors tomli_w markdown_it fsspec filelock timm open_clip".split()


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0 if the stage is done, 3 if it goes on in the next call, 1 if something failed."""
    given = _arguments(words)
    if given.action == "pack":
        return _pack(given)
    if given.action == "fetch":
        if given.folder is None:
            raise SystemExit("give the folder that came back: python -m benchmarks.gpu fetch FOLDER")
        print("\n".join(str(path) for path in loads.fetch(given.folder)))
        return 0
    given.work = given.work.absolute()
    loads.take(given.work)
    missing = pieces.join(given.work / "pieces", given.work)
    wheels.unpack(sorted((given.work / "wheels").glob("*.whl")), given.work / "site")
    sys.path.insert(0, str(given.work / "site"))
    absent = [name for name in _IMPORTS if importlib.util.find_spec(name) is None]
    if absent or missing or given.stage == 0:
        return _said(given, absent, missing)
    if given.pieces is not None:
        return _bring(given, given.pieces, _FILES)
    return _stage(given)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="What wants a GPU, in stages of minutes.", epilog="docs/gpu.md says more."
    )
    parser.add_argument("action", nargs="?", choices=("pack", "fetch"), help="before and after, where there is no GPU")
    parser.add_argument("folder", nargs="?", type=Path, help="fetch: what came back")
    parser.add_argument("--stage", type=int, choices=STAGES, help="which; 0 only takes what was carried")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which the command ends; default 9")
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10's train.parquet and test.parquet")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "dpfed-gpu", help="what is kept between calls"
    )
    parser.add_argument("--there", nargs="*", default=[], metavar="NAME", help="pack: packages that the machine has")
    parser.add_argument("--pieces", type=int, metavar="N", help="bring the pieces of unfinished runs from the Nth on, and end")
    parser.add_argument("--tiny", action="store_true", help="try a stage in seconds; its figures mean nothing")
    parser.add_argument("--again", action="store_true", help="measure what is measured already")
    given = parser.parse_args(words)
    if given.action is None and given.stage is None:
        parser.error("say which --stage, from 0 to 4, or pack, or fetch FOLDER")
    if not given.minutes > 0:
        parser.error(f"--minutes must be positive, got {given.minutes}")
    if given.data is not None and not any(given.data.glob("*.parquet")):
        parser.error(f"--data {given.data}: there are no Parquet files (train.parquet, test.parquet)")
    return given


def _pack(given: argparse.Namespace) -> int:
    from benchmarks.record import commit

    names = wheels.needed((*wheels.THERE, *given.there))
    print(f"fetching {len(names)} wheels", flush=True)
    packed = {
        "wheels": wheels.download(names, loads.BAGGAGE / "wheels"),
        "cifar10": [] if given.data is None else sorted(given.data.glob("*.parquet")),
        "pieces": sorted((loads.BAGGAGE / "pieces").glob("*")),
    }
    made = loads.pack(packed, commit())
    for kind, files in packed.items():
        print(f"{kind:>8}: {len(files):3} files, {sum(file.stat().st_size for file in files) / 2**20:6.1f} MiB")
    print(f"checkout: {loads.checkout_bytes() / 2**20:17.1f} MiB of {loads.CALL >> 20} in a call")
    first, *others = (str(load.relative_to(loads.ROOT)) for load in made)
    if others:
        for load in (first, *others[:-1]):
            print(f"a call that carries {load}: python3 -m benchmarks.gpu --stage 0")
    print(f"a call that carries {(others or [first])[-1]}: python3 -m benchmarks.gpu --minutes 9 --stage 1")
    return 0


def _said(given: argparse.Namespace, absent: list[str], missing: list[str]) -> int:
    """What was taken and what is not there yet."""
    for line in missing:
        print(line)
    if absent:
        print(f"packages that are missing: {', '.join(absent)}. Carry the next load of `python -m benchmarks.gpu pack`.")
    else:
        print(f"all packages are there; what was carried is in {given.work}")
    if given.stage == 0:
        return 0
    print("error: something is missing, and nothing was begun", file=sys.stderr)
    return 2


def _stage(given: argparse.Namespace) -> int:
    began = time.time()
    if not given.tiny and not _has_gpu(given.work):
        print("error: torch finds no GPU here (torch.cuda.is_available()): --tiny tries a stage without one", file=sys.stderr)
        return 2
    ends = began + 60 * given.minutes
    carried = given.work / "cifar10"
    data = given.data or (carried if any(carried.glob("*.parquet")) else None)
    out = os.environ.get("OUT")
    job = {
        "stage": given.stage,
        "work": str(given.work),
        "data": data and str(data.absolute()),
        "out": out,
        "command": f"python -m benchmarks.gpu --stage {given.stage}" + " --tiny" * given.tiny,
        "ends": ends - min(20.0, 6 * given.minutes),  # what is left after that is for the last words
        "tiny": given.tiny,
        "again": given.again,
    }
    tried = given.work / "this-call.json"
    tried.unlink(missing_ok=True)
    code = _FAILED
    while code == _FAILED and time.time() < ends:
        code = _run(job, given.work, ends)
    states = json.loads(tried.read_text(encoding="utf-8")) if tried.exists() else {}
    failed = [name for name, state in states.items() if state == "failed"]
    if out is None and not given.tiny:
        for path in sorted((given.work / "results").glob("gpu-*.json")):
            loads.RESULTS.joinpath(path.name).write_bytes(path.read_bytes())
    print(
        f"\nstage {given.stage}: {sum(state == 'done' for state in states.values())} parts done in {time.time() - began:.0f} s"
    )
    for name in failed:
        print(f"  failed: {name}")
    if code != _DONE:
        print(f"go on: python3 -m benchmarks.gpu --minutes {given.minutes:g} --stage {given.stage}")
        _bring(given, 1, _FILES - len(list((given.work / "results").glob("gpu-*.json"))))
    return 1 if failed else 0 if code == _DONE else 3


def _run(job: dict[str, object], work: Path, ends: float) -> int:
    """One process of a stage; it is ended when time is up."""
    command = [sys.executable, "-m", "benchmarks.gpu.worker", json.dumps(job)]
    process = subprocess.Popen(command, cwd=loads.ROOT, env=_environment(work))
    try:
        return process.wait(timeout=max(1.0, ends - time.time()))
    except subprocess.TimeoutExpired:
        process.kill()  # runs survive it: a step is charged before it is used
        process.wait()
        print("time is up: the part that was at work will begin anew, a run at its last checkpoint", flush=True)
        return _UNFINISHED


def _bring(given: argparse.Namespace, first: int, files: int) -> int:
    """Lays pieces of unfinished runs where they are fetched from, as many as come back in one call."""
    out = os.environ.get("OUT")
    room = _BYTES - (1 << 20)
    cut = [piece for run in pieces.unfinished(given.work) for piece in pieces.cut(run, given.work)]
    if not cut or out is None:
        return 0
    end = first
    for name, content in cut[first - 1 :]:
        if files == 0 or room < len(content):
            break
        Path(out, name).write_bytes(content)
        files, room, end = files - 1, room - len(content), end + 1
    print(f"unfinished runs: pieces {first} to {end - 1} of {len(cut)} come back")
    if end <= len(cut):
        print(f"  the next ones: python3 -m benchmarks.gpu --stage {given.stage} --pieces {end}")
    return 0


def _has_gpu(work: Path) -> bool:
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], env=_environment(work)).returncode == 0


def _environment(work: Path) -> dict[str, str]:
    """Of the processes that do the work: where their packages are, and of which commit the code is."""
    path = [str(work / "site"), str(loads.ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1"}
    commit = work / loads.COMMIT
    if commit.exists():
        environment["DPFED_COMMIT"] = commit.read_text(encoding="utf-8")
    return environment


if __name__ == "__main__":
    sys.exit(main())
