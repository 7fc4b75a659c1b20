"""The command for borrowed GPUs, tried without one: every part gives figures, and what is cut short goes on."""

import contextlib
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
from benchmarks.gpu import checks, loads, parts, steps, training, wheels, worker
from benchmarks.gpu.place import Part, Place, Results, TimeIsUp
from benchmarks.gpu.summary import summary
from benchmarks.gpu.training import cell
from dpfed.config import ModelConfig, ObjectiveConfig
from dpfed.models.building import build_model
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from tests.patience import run_to_end

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(loads, "BAGGAGE", tmp_path / "baggage")


@pytest.fixture
def place(tmp_path, cifar) -> Place:
    return Place(torch.device("cpu"), tmp_path / "work", cifar, time.time() + 600, tiny=True)


@pytest.fixture
def call(place, monkeypatch):
    """Does a call as the worker process does it."""
    monkeypatch.setattr("benchmarks.throughput.transport", lambda: {"backend": "gloo"})  # it starts processes
    monkeypatch.setattr("benchmarks.throughput.DECODED", 8)
    place.work.mkdir()

    def do(action: str = "measure", **changes) -> int:
        job = {"work": str(place.work), "data": str(place.data), "out": None, "command": "test", "ends": place.ends}
        (place.work / "this-call.json").unlink(missing_ok=True)
        return worker.main(action, **{**job, "tiny": True, **changes})

    do.work = place.work
    return do


LONG = ("coordinator", "methods", "worker", "gradients", steps.FUSED)  # words of their paths; the last one is interpreted


def try_all(call, tried, monkeypatch):
    monkeypatch.setattr(parts, "measure", lambda: tried)
    assert tried and call() == worker.DONE
    results = Results(call.work, "test")
    for part in tried:
        figures = results.find(part)
        assert figures is not None and "failed" not in (figures if isinstance(figures, dict) else {}), part.name
        assert not isinstance(figures, dict) or figures.get("passed", True) is True, part.name


def parts_to_try() -> list[Part]:
    return [part for part in parts.measure() if part.tiny and part.path[-1] not in (steps.PLAIN[0], steps.PLAIN[2])]


@pytest.mark.long
def test_every_part_gives_figures_and_the_summary_has_them(call, monkeypatch):
    try_all(call, [part for part in parts_to_try() if not {*part.path} & {*LONG}], monkeypatch)
    said = summary(call.work / "results")
    assert re.search(r"ResNet-18, CIFAR stem +[\d.]+ +[\d.]+ +[\d.]+ +[\d,]+ +0.0  bf16, channels last\n", said)
    for words in ("4,096 views of 32 px", "of linear", "check engines: passed", "check others, small CNN: passed"):
        assert words in said


@pytest.mark.slow
def test_long_parts_give_figures_too(call, monkeypatch):
    try_all(call, [part for part in parts_to_try() if {*part.path} & {*LONG}], monkeypatch)


def test_the_calls_have_what_they_promise():
    planned = parts.measure()
    assert {part.path[0] for part in planned if part.file == "checks"} == {*checks.CHECKS, "others"}
    ways = [(name, way) for name in steps.CASES for way in ("private", *steps.ways(name))]
    assert steps.FUSED in steps.ways("ResNet-50, 224 px") and steps.FUSED not in steps.ways("ViT-B-32 LoRA, 224 px")
    assert sorted(part.path for part in planned if part.file == "step" and len(part.path) == 2) == sorted(ways)
    assert len({part.name for part in planned}) == len(planned)
    first = planned[: 1 + next(number for number, part in enumerate(planned) if part.path[0] == "others")]
    assert sum(part.seconds for part in first) <= 400, "a call of seven minutes does these"
    cells = [part.path[0] for part in parts.table() if part.file == "table1"]
    assert sorted(cells) == sorted(["none", *(f"{method}, epsilon {e}" for method in ("group", "batch") for e in (1, 4, 10))])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "batch, epsilon 4"])
def test_other_cells_have_figures_too(place, name):
    (part,) = (part for part in parts.table() if part.path == (name,))
    (metrics,) = {row["metric"] for row in part.work(place)["rows"]} & {"knn3_accuracy"}
    assert metrics


@pytest.mark.long
def test_a_training_in_a_precision_has_its_curves(place):
    """The curves of figures and of noisy gradients are there."""
    curves = training.in_precision(place, "fp32")
    assert [step for step, _ in curves["knn"]] == [0, 2, 4] and len(curves["noisy_gradient_norms"]) == 4


@pytest.mark.long
def test_a_plain_step_may_have_our_group_norm():
    pytest.importorskip("triton")
    from benchmarks.gpu.fused_norm import FusedNorm

    torch.manual_seed(0)
    model = build_model(ModelConfig(image="resnet18", width=8), ObjectiveConfig(), size=32)
    images, gradients = torch.randn(2, 3, 32, 32), []
    for mode in (contextlib.nullcontext(), FusedNorm()):
        model.zero_grad()
        with mode:
            model.encoder(images).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.encoder.parameters()])
    for plain, fused in zip(*gradients, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-4 * plain.abs().max().item())


def test_a_part_that_does_not_fit_makes_room_for_a_shorter_one(call, place, monkeypatch, capsys):
    done = []
    tried = [Part("checks", (name,), seconds, lambda _, name=name: done.append(name) or {"passed": True})
             for name, seconds in (("first", 0.0), ("long", 500.0), ("short", 5.0))]  # fmt: skip
    monkeypatch.setattr(parts, "measure", lambda: tried)
    assert call(tiny=False, ends=time.time() + 60) == worker.UNFINISHED
    assert done == ["first", "short"] and "long: not begun, it takes about 500 s" in capsys.readouterr().out


@pytest.mark.long
def test_a_cell_that_is_out_of_time_goes_on_in_the_next_call(place):
    late = Place(place.device, place.work, place.data, time.time() - 1, tiny=True)
    with pytest.raises(TimeIsUp, match="2 of 4 steps"):
        cell(late)
    (ledger,) = place.work.rglob("ledger.jsonl")
    digests = [Ledger.open(ledger).release_of(step).digest for step in (0, 1)]
    beside = [(row["name"], row["published"]) for row in cell(place)["rows"] if row["metric"] == "knn3_accuracy"]
    assert beside == [("Base", 24.5), ("DP-GCL", 39.5)]
    after = Ledger.open(ledger)
    assert after.charged == 4 and [after.release_of(step).digest for step in (0, 1)] == digests


def test_a_part_that_fails_is_named_and_the_others_are_done(call, place, monkeypatch, capsys):
    def broken(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    tried = [Part("checks", ("broken",), 0.0, broken), Part("checks", ("fine",), 0.0, lambda _: {"passed": True})]
    monkeypatch.setattr(parts, "measure", lambda: tried)
    assert call() == worker.FAILED
    results = Results(place.work, "test")
    assert "illegal memory access" in results.find(tried[0])["failed"] and results.find(tried[1]) is None
    job = {"work": str(place.work), "data": None, "out": None, "command": "test", "ends": place.ends, "tiny": True}
    assert worker.main("measure", **job) == worker.DONE  # the next process of the same call
    assert results.find(tried[1]) == {"passed": True}


def test_noise_that_differs_is_seen(place, monkeypatch):
    assert checks.noise(place)["passed"]
    honest = Randomness.normal_steps
    calls = []

    def other(self, values, scale, *rest, **more):
        calls.append(1)
        return honest(self, values, scale * (1 + 1e-5 * len(calls)), *rest, **more)

    monkeypatch.setattr(Randomness, "normal_steps", other)
    outcome = checks.noise(place)
    assert not outcome["passed"] and not outcome["repeats"]


def test_a_sum_that_differs_is_seen(place, monkeypatch):
    assert checks.engines(place)["passed"]
    honest, calls = checks._sums, []

    def other(engine, batch):
        calls.append(1)
        total, norms = honest(engine, batch)
        return (total * 1.001 if len(calls) == 3 else total), norms  # as TF32 would leave it

    monkeypatch.setattr(checks, "_sums", other)
    assert not checks.engines(place)["passed"]


def test_loads_hold_everything_and_none_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(loads, "BAGGAGE", tmp_path / "baggage")
    monkeypatch.setattr(loads, "checkout_bytes", lambda: 0)
    files = []
    for number, size in enumerate((700, 600, 300, 200)):
        files.append(tmp_path / f"{number}.whl")
        files[-1].write_bytes(bytes(size))
    made = loads.pack({"wheels": files[:3], "cifar10": files[3:]}, "abc", call=loads._SPARE + 1000)
    assert [sum(file.stat().st_size for file in load.rglob("*.whl")) for load in made] == [1000, 800]
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
        (["everything"], "invalid choice"),
        (["--minutes", "0"], "must be positive"),
        (["--data", "nowhere"], "no Parquet files"),
        (["fetch"], "FOLDER"),
    ],
)
def test_bad_words_are_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code != 0 and said in f"{ended.value.code}{capsys.readouterr().err}"


@pytest.mark.parametrize("lack", ["torch finds no GPU here", "torch has no Triton here"])
def test_without_a_gpu_or_triton_nothing_is_measured(lack, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "_lack", lambda _: lack)
    assert command.main(["--work", str(tmp_path)]) == 2
    assert lack in capsys.readouterr().err
    monkeypatch.setattr(command, "_lack", lambda _: "")
    assert command.main(["table", "--work", str(tmp_path)]) == 2
    assert "the cell wants CIFAR-10" in capsys.readouterr().err


@pytest.mark.slow
def test_a_machine_with_torch_and_the_wheels_measures_all(tmp_path):
    """A real process, in an environment that holds torch, torchvision, numpy, pillow and what `pack` carries; nothing else."""
    site, base, work, copy = (tmp_path / name for name in ("env", "base", "work", "copy"))
    venv.create(site, symlinks=True)
    _link(_with_needs(*wheels.THERE) | set(wheels.needed()), base)
    for name in ("benchmarks", "dpfed", "configs"):  # what was packed here stays out
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(base), "OMP_NUM_THREADS": "1"}
    words = [str(site / "bin" / "python"), "-m", "benchmarks.gpu", "--minutes", "9", "--tiny", "--work", str(work)]
    done = run_to_end(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((work / "results" / "gpu-checks.json").read_text())["figures"]["tf32"]["passed"]
    for absent in ("ray", "flwr", "opacus", "pytest"):
        lacks = subprocess.run([words[0], "-c", f"import {absent}"], env=environment, capture_output=True)
        assert lacks.returncode == 1


def _with_needs(*names: str) -> set[str]:
    """Installed packages, and what these need."""
    from packaging.requirements import Requirement

    packages: set[str] = set()
    open_names = [*names]
    while open_names:
        name = wheels.canonical(open_names.pop())
        if name in packages:
            continue
        packages.add(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                open_names.append(requirement.name)
    return packages


def _link(names, folder: Path) -> None:
    """Lays installed packages out in a folder, as links."""
    folder.mkdir(parents=True)
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            place = folder / top
            if not place.exists():
                place.symlink_to(distribution.locate_file(top))
