"""The wheel: all that dpfed reads and nothing else, and it works in an empty folder, away from the repository."""

from __future__ import annotations

import configparser
import ctypes
import json
import os
import tarfile
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from installation import ROOT, outside

import dpfed
from dpfed.files.shipped import config_names

PACKAGES = ("dpfed",)
SHORT = ("privacy.steps=2", "privacy.batch=64", "data.records=300", "evaluation.records=50")
TINY = (*SHORT, "model.width=4", "model.text_width=16", "model.text_layers=1")
# No home, no UTF-8, no colours, and a narrow terminal.
MODEST = {**outside(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1", "COLUMNS": "40"}
SETTINGS = [word for setting in TINY for word in ("--set", setting)]


def files(folder: Path) -> set[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


def run_state(folder: Path) -> dict[str, tuple[int, int]]:
    return {name: ((folder / name).stat().st_mtime_ns, (folder / name).stat().st_size) for name in files(folder)}


@pytest.mark.long
def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel):
    expected = {f"{package}/{name}" for package in PACKAGES for name in files(ROOT / package)}
    expected |= {f"dpfed/configs/{name}" for name in files(ROOT / "configs")}
    expected |= {f"dpfed/published/{name}" for name in files(ROOT / "benchmarks" / "published")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in ("dpfed/configs/quickstart.toml", "dpfed/published/dp-gcl.csv", "dpfed/report/template.html"):
            home = name.replace("dpfed/configs", "configs").replace("dpfed/published", "benchmarks/published")
            assert archive.read(name) == (ROOT / home).read_bytes()
    info = {name for name in names if ".dist-info/" in name}
    assert names - info == expected
    assert {Path(name).name for name in info} == {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}


@pytest.mark.long
def test_the_metadata_announce_the_same_parts_as_the_package(wheel):
    def points(archive, name):
        read = configparser.ConfigParser(delimiters=("=",))
        read.read_string(archive.read(name).decode())
        return {group: dict(read[group]) for group in read.sections()}

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert points(archive, metadata) == points(archive, "dpfed/entry_points.txt") | {
            "console_scripts": {"dpfed": "dpfed.__main__:main"}
        }


def test_the_sdist_has_what_the_wheel_is_made_of_and_no_results(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "configs/quickstart.toml"} <= names
    assert not {name for name in names if name.startswith(("tests", "benchmarks/results")) or "__pycache__" in name}


@pytest.mark.slow
def test_it_runs_in_an_empty_folder(guarded):
    """The commands that a newcomer gives, on a modest terminal; none may look at the checkout, or write into the package."""
    before = run_state(guarded.packages)
    assert guarded.run("dpfed", "--version").stdout == f"dpfed {dpfed.__version__}\n"
    listed = guarded.run("dpfed", "config", "list").stdout
    assert all(name in listed for name in config_names())
    assert guarded.run("dpfed", "config", "show", "quickstart").stdout == (ROOT / "configs" / "quickstart.toml").read_text()
    wrong = guarded.run("dpfed", "pretrain", "quikstart", check=2)
    assert "did you mean 'quickstart'?" in wrong.stderr and not list(guarded.folder.iterdir())
    done = guarded.run("dpfed", "pretrain", "quickstart", *SETTINGS, env=MODEST)
    assert done.stderr.startswith(f"quickstart: as shipped with dpfed {dpfed.__version__}\n")
    assert "\x1b" not in done.stdout and done.stdout.isascii() and "quickstart: epsilon 8.00" in done.stdout
    run = guarded.folder / "runs" / "quickstart"
    assert {"config.toml", "ledger.jsonl", "model", "privacy_card.md", "report.html", "results.json"} <= set(os.listdir(run))
    assert json.loads((run / "results.json").read_text())["privacy"]["steps_charged"] == 2
    assert {path.name for path in guarded.folder.iterdir()} == {"runs", "stores"}
    assert run_state(guarded.packages) == before  # nothing is written into the package


EVERYTHING = """
import contextlib, io, sys
import dpfed.cluster.cost, dpfed.cluster.work, dpfed.federation.demo.one_machine
import dpfed.federation.flower.client_app, dpfed.federation.flower.server_app
from dpfed.cli import app
from dpfed.reproduce.published import PAPERS, published
from pathlib import Path
from dpfed.federation.flower.app_folder import make_app_folder
import dpfed
print(dpfed.__file__.rpartition("dpfed")[0])
print(sum(len(published(paper)) for paper in PAPERS))
print(dpfed.load_config("adapt/shapes-public").model.architecture)
app(["reproduce", "--list"], standalone_mode=False)
make_app_folder(Path("flower-app"))
"""


@pytest.mark.slow
def test_cluster_federation_and_published_figures_are_there(guarded):
    from dpfed.reproduce.published import PAPERS, published

    lines = guarded.run("python", "-c", EVERYTHING, check=0).stdout.splitlines()
    assert lines[0] == f"{guarded.packages}/"
    assert int(lines[1]) == sum(len(published(paper)) for paper in PAPERS)
    assert lines[2] == "towers/small.json"
    assert any(line.startswith("table5") for line in lines)
    made = tomllib.loads((guarded.folder / "flower-app" / "pyproject.toml").read_text())
    assert made["tool"]["flwr"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]
    assert files(guarded.folder / "flower-app") >= {"clients/app.py", "server/app.py"}


# --- slow ---


REPRODUCE = """
from dpfed.cli import app
from dpfed.reproduce.comparison import DATA_SETS
DATA_SETS["shapes"].cpu.update({"data.records": 300, "privacy.batch": 32, "privacy.steps": 2, "model.width": 4})
app(["reproduce", "table13", "--data", "shapes", "--methods", "group"], standalone_mode=False)
"""


@pytest.mark.slow
def test_an_experiment_is_reproduced_without_a_checkout(guarded):
    shown = guarded.run("python", "-c", REPRODUCE).stdout
    assert "DP-GCL" in shown and "T = 2" in shown
    (results,) = (guarded.folder / "runs" / "reproduce").glob("table13-shapes-*/results.csv")
    assert results.read_text().startswith("experiment,")


def unable() -> None:
    """Takes away what lets root write everywhere (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH), before another program starts."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("pretrain", "quickstart", *SETTINGS),
        ("pretrain", "quickstart", *SETTINGS, "--set", "data.stores=../stores"),
        ("reproduce", "methods"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_read_only_folder_is_refused_in_a_sentence(words, guarded, tmp_path):
    (tmp_path / "sealed").mkdir(mode=0o555)
    options = {"cwd": tmp_path / "sealed", "preexec_fn": unable}
    if guarded.run("python", "-c", "open('x', 'w')", check=None, **options).returncode == 0:
        pytest.skip("this user may write everywhere")
    assert guarded.run("dpfed", *words, check=2, **options).stderr.splitlines()[-1].startswith("error: cannot")
    assert not list((tmp_path / "sealed").iterdir())


@pytest.mark.slow
def test_institutions_need_no_checkout(guarded):
    """`make federation`, from the wheel: three parties, Flower over TLS, and the apps' folder made on the spot."""
    pytest.importorskip("flwr")
    for entry in entry_points(group="console_scripts"):
        if entry.dist is not None and entry.dist.name == "flwr":  # installed as a dependency would be
            program = guarded.prefix / "bin" / entry.name
            call = f"import sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n"
            program.write_text(f"#!{guarded.prefix / 'bin' / 'python'}\n{call}")
            program.chmod(0o755)
    words = [*"-m dpfed federation demo federation --run runs/federation --sites 2".split(), *SETTINGS]
    words += ["--set", "data.records=600"]
    assert "epsilon 8.00" in guarded.run("python", *words, timeout=500).stdout
    assert (guarded.folder / "runs" / "federation" / "privacy_card.md").exists()
