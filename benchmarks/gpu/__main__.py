"""The command; see `benchmarks.gpu`. It needs only Python's library, as dpfed's packages may still be packed as wheels."""

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

from benchmarks.gpu import loads, wheels
from benchmarks.gpu.summary import summary

_DONE, _FAILED, _UNFINISHED = 0, 4, 3  # what `benchmarks.gpu.worker` ends with
# What must be importable before anything begins; what they need themselves shows when they are imported.
_IMPORTS = (
    "torch torchvision numpy PIL pyarrow pydantic cryptography dp_accounting scipy sklearn matplotlib jinja2 typer".split()
)
_IMPORTS += "rich safetensors tomli_w markdown_it filelock timm open_clip".split()


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0: all is done; 3: the same command does the rest; 1: a part failed; 2: no part was begun."""
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
    wheels.unpack(sorted((given.work / "wheels").glob("*.whl")), given.work / "site")
    sys.path.insert(0, str(given.work / "site"))
    absent = [name for name in _IMPORTS if importlib.util.find_spec(name) is None]
    if absent:
        print(f"packages that are missing: {', '.join(absent)}. Carry the next load of `python -m benchmarks.gpu pack`.")
    if given.action == "take":
        return 0
    if absent:
        return _refused("something is missing, and nothing was begun")
    return _call(given)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="What wants a GPU, in a call of minutes.",
        epilog="docs/results.md says more.",
    )
    actions = {
        "measure": "all that matters (the default)",
        "table": "cells of Table 1, and bf16 beside fp32",
        "take": "only take what was carried",
    }
    actions |= {"pack": "before, where there is no GPU", "fetch": "after it"}
    help = "; ".join(f"{name}: {words}" for name, words in actions.items())
    parser.add_argument("action", nargs="?", choices=actions, default="measure", help=help)
    parser.add_argument("folder", nargs="?", type=Path, help="fetch: what came back")
    parser.add_argument("--minutes", type=float, default=7.0, help="after which the command ends; default 7")
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10's train.parquet and test.parquet")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "dpfed-gpu", help="what is kept between calls"
    )
    parser.add_argument("--there", nargs="*", default=[], metavar="NAME", help="pack: packages that the machine has")
    parser.add_argument("--tiny", action="store_true", help="try everything in a minute; its figures mean nothing")
    given = parser.parse_args(words)
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
    }
    made = loads.pack(packed, commit())
    for kind, files in packed.items():
        print(f"{kind:>8}: {len(files):3} files, {sum(file.stat().st_size for file in files) / 2**20:6.1f} MiB")
    print(f"checkout: {loads.checkout_bytes() / 2**20:17.1f} MiB of {loads.CALL >> 20} in a call")
    first, *others = (str(load.relative_to(loads.ROOT)) for load in made)
    if others:
        for load in (first, *others[:-1]):
            print(f"a call that carries {load}: python3 -m benchmarks.gpu take")
    print(f"a call that carries {(others or [first])[-1]}: python3 -m benchmarks.gpu")
    return 0


def _refused(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def _call(given: argparse.Namespace) -> int:
    began = time.time()
    if not given.tiny and (lack := _lack(given.work)):
        return _refused(f"{lack}: --tiny tries the command without a GPU")
    carried = given.work / "cifar10"
    data = given.data or (carried if any(carried.glob("*.parquet")) else None)
    if given.action == "table" and data is None:
        return _refused("the cell wants CIFAR-10: python -m benchmarks.gpu pack --data DIR carries it, or give --data DIR here")
    out, ends = os.environ.get("OUT"), began + 60 * given.minutes
    job = {
        "call": given.action,
        "work": str(given.work),
        "data": data and str(data.absolute()),
        "out": out,
        "command": f"python -m benchmarks.gpu {given.action}" + " --tiny" * given.tiny,
        "ends": ends - min(20.0, 6 * given.minutes),  # what is left after that is for the last words
        "tiny": given.tiny,
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
    done = sum(state == "done" for state in states.values())
    print(f"\n{summary(given.work / 'results')}\n\n{done} parts done in {time.time() - began:.0f} s")
    for name in failed:
        print(f"  failed: {name}")
    if code != _DONE:
        print("the same command does the rest")
    return 1 if failed else 0 if code == _DONE else 3


def _run(job: dict[str, object], work: Path, ends: float) -> int:
    """Runs one process of a call, and returns its exit code; the process is killed when time is up."""
    command = [sys.executable, "-m", "benchmarks.gpu.worker", json.dumps(job)]
    process = subprocess.Popen(command, cwd=loads.ROOT, env=_environment(work))
    try:
        return process.wait(timeout=max(1.0, ends - time.time()))
    except subprocess.TimeoutExpired:
        process.kill()  # runs survive it: a step is charged before it is used
        process.wait()
        print("time is up: the part that was at work will begin anew, a run at its last checkpoint", flush=True)
        return _UNFINISHED


def _lack(work: Path) -> str:
    """Returns a phrase that says what this machine lacks; empty: nothing."""
    words = "import importlib.util as u, sys, torch"
    code = f"{words}; sys.exit(2 * (u.find_spec('triton') is None) if torch.cuda.is_available() else 1)"
    status = subprocess.run([sys.executable, "-c", code], env=_environment(work)).returncode
    said = {0: "", 2: "torch has no Triton here (pip install triton), without which a step is many times as slow"}
    return said.get(status, "torch finds no GPU here (torch.cuda.is_available())")


def _environment(work: Path) -> dict[str, str]:
    """Returns the environment of the processes that do the work: the path of their packages, and the commit of the code."""
    path = [str(work / "site"), str(loads.ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1"}
    commit = work / loads.COMMIT
    if commit.exists():
        environment["DPFED_COMMIT"] = commit.read_text(encoding="utf-8")
    return environment


if __name__ == "__main__":
    sys.exit(main())
