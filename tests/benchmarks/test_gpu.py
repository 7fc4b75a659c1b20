"""The command for borrowed GPUs, tried without one: every part gives figures, and what is cut short goes on."""

import json
import os
import re
import shutil
import subprocess
import time
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import checks, loads, pieces, speed, stages, wheels, worker
from benchmarks.gpu.place import Part, Place, Results, TimeIsUp
from benchmarks.gpu.training import cell, started, variants_of
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(loads, "BAGGAGE", tmp_path / "baggage")


@pytest.fixture
def place(tmp_path, cifar) -> Place:
    return Place(torch.device("cpu"), tmp_path / "work", cifar, time.time() + 600, tiny=True)


@pytest.fixture
def stage(place, monkeypatch):
    """Does a stage as the worker process does it."""
    monkeypatch.setattr("benchmarks.throughput.transport", lambda: {"backend": "gloo"})  # it starts processes
    place.work.mkdir()

    def do(number: int, **changes) -> int:
        job = {"work": str(place.work), "data": str(place.data), "out": None, "command": "test", "ends": place.ends}
        (place.work / "this-call.json").unlink(missing_ok=True)
        return worker.main(number, **{**job, "tiny": True, "again": False, **changes})

    do.work = place.work
    return do


LONG = ("scenes, epsilon 8", "overhead", "coordinator", "methods", "memory")  # the first word or words of their paths


@pytest.mark.parametrize("number", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 3, 4))])
def test_every_part_of_a_stage_gives_figures(stage, number, monkeypatch):
    try_all(stage, number, [part for part in parts_to_try(number) if part.path[0] not in LONG], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 4])
def test_long_parts_give_figures_too(stage, number, monkeypatch):
    try_all(stage, number, [part for part in parts_to_try(number) if part.path[0] in LONG], monkeypatch)


def try_all(stage, number, parts, monkeypatch):
    monkeypatch.setattr(worker, "stages", lambda: {number: parts})
    assert parts and stage(number) == worker.DONE
    results = Results(stage.work, "test", brought=None)
    for part in parts:
        found = results.find(part)
        assert found is not None and "failed" not in (found if isinstance(found, dict) else {}), part.name
        assert not isinstance(found, dict) or found.get("passed", True) is True, part.name


def parts_to_try(number: int) -> list[Part]:
    """Leaves out parts that differ from others in sizes alone, which are all the same when they are tiny."""
    alike = re.compile(r"ResNet|epsilon 1$|^batch, epsilon|16384|pyramid|S = 64|memory, 1024")
    every = [part for part in stages.stages()[number] if part.tiny]
    return [part for part in every if not alike.search(", ".join(part.path))]


def test_the_stages_have_what_they_promise():
    found = stages.stages()
    assert [part.path[0] for part in found[2]] == [
        "group, epsilon 10",
        "batch, epsilon 10",
        "group, epsilon 1",
        "batch, epsilon 1",
    ]
    assert {part.path[0] for part in found[1] if part.file == "checks"} == set(checks.CHECKS)
    names = [part.name for parts in found.values() for part in parts]
    assert len(set(names)) == len(names)


def test_a_run_that_is_out_of_time_travels_in_pieces_and_goes_on(place, monkeypatch, tmp_path):
    monkeypatch.setattr(pieces, "BYTES", 200_000)
    late = Place(place.device, place.work, place.data, time.time() - 1, tiny=True)
    variants = variants_of("table1", "group")
    with pytest.raises(TimeIsUp, match="2 of 4 steps"):
        cell(late, "table1", variants, 10.0)
    (run,) = pieces.unfinished(place.work)
    digests = [Ledger.open(run / "ledger.jsonl").release_of(step).digest for step in (0, 1)]

    cut = dict(pieces.cut(run, place.work))
    run.rename(tmp_path / "gone")
    folder = tmp_path / "pieces"
    folder.mkdir()
    first, *others = cut
    for name in others:
        (folder / name).write_bytes(cut[name])
    assert "pieces 1 of" in pieces.join(folder, place.work)[0] and others and not run.exists()
    (folder / first).write_bytes(cut[first])
    assert pieces.join(folder, place.work) == []
    kept = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert {"config.toml", "ledger.jsonl", "secret.key", "checkpoints/step-00000002.safetensors"} <= kept
    assert "checkpoints/step-00000000.safetensors" not in kept and not any(name.startswith("releases/") for name in kept)

    rows = cell(place, "table1", variants, 10.0)["rows"]
    beside = [(row["name"], row["published"]) for row in rows if row["metric"] == "knn3_accuracy"]
    assert beside == [("Base", 24.5), ("DP-GCL", 39.5)]
    ledger = Ledger.open(run / "ledger.jsonl")
    assert ledger.charged == 4 and [ledger.release_of(step).digest for step in (0, 1)] == digests
    assert not pieces.unfinished(place.work)


def test_a_start_is_made_before_the_run_is_named(place, monkeypatch, tmp_path):
    """Its digest is part of the configuration, after which the run's folder is named."""
    recipe = tmp_path / "start.toml"
    text = (ROOT / "configs" / "start.toml").read_text(encoding="utf-8")
    for old, new in (("= 300", "= 2"), ("= 256", "= 8"), ("20_000", "32"), ("warmup = 20", "warmup = 0")):
        text = text.replace(old, new)
    recipe.write_text(text)
    monkeypatch.setattr("dpfed.runs.starts.shipped_file", lambda _: recipe)
    rows = started(place, 10.0)["rows"]
    assert {row["name"] for row in rows} == {"Base", "DP-GCL"}
    assert len(list((place.work / "reproduce" / "runs").iterdir())) == 1


def test_a_part_that_fails_is_named_and_the_others_are_done(stage, place, monkeypatch, capsys):
    def broken(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    parts = [Part("checks", ("broken",), 0.0, broken), Part("checks", ("fine",), 0.0, lambda _: {"passed": True})]
    monkeypatch.setattr(worker, "stages", lambda: {1: parts})
    assert stage(1) == worker.FAILED
    results = Results(place.work, "test", brought=None)
    assert "illegal memory access" in results.find(parts[0])["failed"] and results.find(parts[1]) is None
    job = {"work": str(place.work), "data": None, "out": None, "command": "test", "ends": place.ends, "tiny": True}
    assert worker.main(1, **job, again=False) == worker.DONE  # the next process of the same call
    assert results.find(parts[1]) == {"passed": True}


def test_what_was_measured_elsewhere_counts_on_the_same_hardware_only(place, tmp_path, monkeypatch):
    brought = tmp_path / "brought"
    brought.mkdir()
    part = Part("step", ("overhead", "small CNN"), 0.0, lambda _: None)
    Results(tmp_path / "a", "test", brought=None).add(part, {"ratio": 1.0})
    (tmp_path / "a" / "results" / "gpu-step.json").rename(brought / "gpu-step.json")
    assert Results(tmp_path / "b", "test", brought).find(part) == {"ratio": 1.0}
    monkeypatch.setattr("benchmarks.record.hardware", lambda: "another GPU")
    assert Results(tmp_path / "b", "test", brought).find(part) is None


def test_noise_that_differs_is_seen(place, monkeypatch):
    assert checks.noise(place)["passed"]
    honest = Randomness.add_normal_
    calls = []

    def other(self, out, scale, *rest, **more):
        calls.append(1)
        honest(self, out, scale * (1 + 1e-6 * len(calls)), *rest, **more)

    monkeypatch.setattr(Randomness, "add_normal_", other)
    found = checks.noise(place)
    assert not found["passed"] and not found["repeats"]


def test_a_sum_that_differs_is_seen(place, monkeypatch):
    assert checks.engines(place)["passed"]
    honest, calls = checks._sums, []

    def other(engine, batch):
        calls.append(1)
        total, norms = honest(engine, batch)
        return (total * 1.001 if len(calls) == 3 else total), norms  # as TF32 would leave it

    monkeypatch.setattr(checks, "_sums", other)
    assert not checks.engines(place)["passed"]


def test_what_does_not_fit_into_memory_is_halved():
    tried = []

    def measure(records):
        tried.append(records)
        if records > 100:
            raise torch.OutOfMemoryError("no")
        return {"records": records}

    assert speed.fitting(measure, 400) == {"records": 100} and tried == [400, 200, 100]


def test_loads_hold_everything_and_none_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(loads, "BAGGAGE", tmp_path / "baggage")
    monkeypatch.setattr(loads, "checkout_bytes", lambda: 0)
    files = []
    for number, size in enumerate((700, 600, 300, 200)):
        files.append(tmp_path / f"{number}.whl")
        files[-1].write_bytes(bytes(size))
    made = loads.pack({"wheels": files[:3], "cifar10": files[3:]}, "abc", call=loads._SPARE + 1000)
    held = [sum(file.stat().st_size for file in load.rglob("*.whl")) for load in made]
    assert held == [1000, 800]
    loads.take(tmp_path / "work")
    assert {file.name for file in (tmp_path / "work").rglob("*") if file.is_file()} == {file.name for file in files} | {
        "commit"
    }
    with pytest.raises(SystemExit, match="700 bytes"):
        loads.pack({"wheels": files}, "abc", call=loads._SPARE + 650)


def test_the_wheels_are_all_that_the_project_names(tmp_path):
    """The lock file has one version of each for the machine's Python."""
    names = wheels.needed()
    assert {"pyarrow", "cryptography", "pydantic-core", "dp-accounting", "open-clip-torch"} <= set(names)
    assert not {"torch", "numpy", "ray", "flwr", "opacus", "triton", "pytest"} & set(names)
    lines = [line for line in wheels.locked(names).splitlines() if "==" in line]
    assert len(lines) == len(names) and not any(";" in line for line in lines)
    assert "pyarrow" not in wheels.needed((*wheels.THERE, "PyArrow"))
    with zipfile.ZipFile(tmp_path / "one-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", "")
        wheel.writestr("one-1.data/purelib/two.py", "")
    wheels.unpack([tmp_path / "one-1-py3-none-any.whl"], tmp_path / "site")
    assert {path.name for path in (tmp_path / "site").glob("*") if path.suffix != ".unpacked"} == {"one", "two.py"}


def test_unpacking_writes_nothing_to_where_a_link_leads(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "__init__.py").write_text("mine")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "one").symlink_to(tmp_path / "elsewhere")
    with zipfile.ZipFile(tmp_path / "one-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", "theirs")
    wheels.unpack([tmp_path / "one-1-py3-none-any.whl"], tmp_path / "site")
    assert (tmp_path / "elsewhere" / "__init__.py").read_text() == "mine"
    assert (tmp_path / "site" / "one" / "__init__.py").read_text() == "theirs"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--stage"),
        (["--stage", "7"], "invalid choice"),
        (["--stage", "1", "--minutes", "0"], "must be positive"),
        (["--stage", "1", "--data", "nowhere"], "no Parquet files"),
        (["fetch"], "FOLDER"),
    ],
)
def test_bad_words_are_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code != 0 and said in f"{ended.value.code}{capsys.readouterr().err}"


def test_without_a_gpu_nothing_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "_has_gpu", lambda _: False)
    assert command.main(["--stage", "1", "--work", str(tmp_path)]) == 2
    assert "no GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_a_machine_with_torch_and_the_wheels_does_the_first_stage(tmp_path):
    """A real process, in an environment that holds torch, torchvision, numpy, pillow and what `pack` carries; nothing else."""
    site, base, work, copy = (tmp_path / name for name in ("env", "base", "work", "copy"))
    venv.create(site, symlinks=True)
    _link(_with_needs(*wheels.THERE) | set(wheels.needed()), base)
    for name in ("benchmarks", "dpfed", "configs"):  # what was packed here stays out
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(base), "OMP_NUM_THREADS": "1"}
    words = [
        str(site / "bin" / "python"),
        "-m",
        "benchmarks.gpu",
        "--stage",
        "1",
        "--minutes",
        "9",
        "--tiny",
        "--work",
        str(work),
    ]
    done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((work / "results" / "gpu-checks.json").read_text())["figures"]["tf32"]["passed"]
    for absent in ("ray", "flwr", "opacus", "pytest"):
        lacks = subprocess.run([words[0], "-c", f"import {absent}"], env=environment, capture_output=True)
        assert lacks.returncode == 1


def _with_needs(*names: str) -> set[str]:
    """Installed packages, and what these need."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    open_names = [*names]
    while open_names:
        name = wheels.canonical(open_names.pop())
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                open_names.append(requirement.name)
    return found


def _link(names, folder: Path) -> None:
    """Lays installed packages out in a folder, as links."""
    folder.mkdir(parents=True)
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            place = folder / top
            if not place.exists():
                place.symlink_to(distribution.locate_file(top))
