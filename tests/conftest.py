"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfed.config import Config, parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.data.store.records import RecordStore
from dpfed.runs import build as building
from dpfed.runs import memory
from tests import accounted, calibrated
from tests.alike_once import ask_each_time, ask_once
from tests.timm_alone import import_timm_alone
from tests.undrawn import draw, undraw

# Caches of hypothesis, wherever it is used: never a folder in the checkout.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "dpfed-hypothesis"))

# Triton's kernels are computed by its interpreter: tests need no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# In the background of a script the suite ignores Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until the tests are collected
accounted.keep()
calibrated.keep()
import_timm_alone()

CIFAR10 = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"

# They take longest, and begin: no process of a session is left with one of them at the end, while the others idle.
LONGEST = (
    "cluster/test_workers_and_faults.py",
    "cluster/test_one_mechanism.py",
    "bounding/engines/test_others_stay.py",
    "bounding/kernels/test_outer_products.py",
    "bounding/methods/test_neighbours.py",
    "baselines/whole_batch/test_whole_batch_engines.py",
    "runs/test_budgeting.py",
    "cli/test_commands.py",
    "audit/test_privacy_audit.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the others stay in their order."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Torch, its kin and the tests are some million objects that stay: each collection of garbage would look at all of them."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries report objects that are left at the end."""
    gc.unfreeze()


TINY = {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 256, "embedding": 16}


@pytest.fixture(scope="session")
def shapes(tmp_path_factory) -> RecordStore:
    """600 generated training records and 200 test records."""
    path = tmp_path_factory.mktemp("records") / "shapes"
    write_shapes(path, train=600, validation=0, test=200)
    return RecordStore.open(path)


@pytest.fixture
def tiny(shapes) -> dict:
    """A configuration of a run of six steps that takes about a second, as nested dictionaries."""
    return tiny_tree(shapes)


def tiny_tree(shapes: RecordStore) -> dict:
    """The same, for runs that the tests of a file share."""
    return {
        "name": "tiny",
        "data": {"source": "store", "path": str(shapes.path), "size": 16},
        "views": {"crop_scale": [0.5, 1.0], "jitter": 0.5},
        "model": dict(TINY),
        "bounding": {"group_size": 4, "engine": "loop", "microbatch": 32},
        "privacy": {"epsilon": 8.0, "batch": 60, "steps": 6},
        "optimizer": {"learning_rate": 3e-3},
        "training": {"checkpoint_every": 2, "device": "cpu"},
        "evaluation": {"tasks": ["retrieval"], "every": 3, "records": 100},
    }


@pytest.fixture
def discrete(tiny) -> dict:
    """The same with discrete noise."""
    tiny["privacy"] |= {"noise": "discrete", "epsilon": None, "noise_multiplier": 1.0, "accountant": "rdp"}
    return tiny


@pytest.fixture(scope="session")
def public_store(tmp_path_factory) -> RecordStore:
    """60 generated records that are no records of `shapes`."""
    path = tmp_path_factory.mktemp("public") / "shapes"
    write_shapes(path, train=60, validation=0, test=0, seed=9)
    return RecordStore.open(path)


@pytest.fixture
def tiny_public(tiny, public_store) -> dict:
    """The same with public contrast."""
    bounding = {"method": "public", "engine": "loop", "microbatch": 32}
    return {**tiny, "bounding": bounding, "public": {"path": str(public_store.path)}}


@pytest.fixture(scope="session")
def aligned_start(tmp_path_factory) -> Path:
    """Weights of both towers of `tiny`, as if they had been trained together."""
    from safetensors.torch import save_file

    from dpfed.config import ModelConfig, ObjectiveConfig
    from dpfed.models.building import build_model

    path = tmp_path_factory.mktemp("start") / "weights.safetensors"
    torch.manual_seed(0)
    save_file(build_model(ModelConfig(**TINY), ObjectiveConfig(), size=16).state_dict(), path)
    return path


@pytest.fixture
def tiny_moments(tiny, aligned_start) -> dict:
    """The same in closed form, behind frozen towers."""
    kept = {name: tiny[name] for name in ("name", "data", "training")}
    return kept | {
        "model": TINY | {"start": str(aligned_start)},
        "bounding": {"method": "moments", "microbatch": 32},
        "privacy": {"epsilon": 8.0},
        "evaluation": {"tasks": ["retrieval"], "records": 100},
    }


@pytest.fixture
def tiny_config(tiny) -> Config:
    return parse_config(tiny)


@pytest.fixture
def dpfed(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process, which has torch already: words in, exit code, stdout and stderr out."""

    def call(*arguments: object) -> tuple[int, str, str]:
        from dpfed.cli import main

        monkeypatch.setattr(sys, "argv", ["dpfed", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture(scope="session", autouse=True)
def shared_accounting(tmp_path_factory) -> None:
    """The workers of a session share epsilons, and noise multipliers that nobody kept."""
    temporary = tmp_path_factory.getbasetemp()
    for name, variable in {"accounted": accounted.FOLDER, "calibrated": calibrated.FOLDER}.items():
        folder = (temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary) / name
        folder.mkdir(exist_ok=True)
        os.environ[variable] = str(folder)


@pytest.fixture(scope="session", autouse=True)
def tried_once() -> Iterator[None]:
    """Of models that are built alike, one is tried on noise before a run, and one is counted; trials' own tests call them."""
    real, passed = building.check_independence, set()
    real_count, counted = memory._count, {}

    def check(model, group, tried):
        changed = any("forward" in vars(module) for module in model.modules())
        built = (repr(model), repr({name: view.shape for name, view in group.items()}), tried)
        if changed or built not in passed:
            real(model, group, tried)
            passed.add(built)

    def count(config):
        built = repr(
            [getattr(config, part) for part in ("data", "views", "model", "adaptation", "objective", "bounding", "public")]
        )
        if built not in counted:
            counted[built] = real_count(config)
        return counted[built]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "check_independence", check)
        patch.setattr(memory, "_count", count)
        yield


@pytest.fixture(scope="session", autouse=True)
def asked_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        ask_once(patch)
        yield


@pytest.fixture
def asked_each_time(asked_once, monkeypatch) -> None:
    """Every engine asks whether groups are computed alike, whatever was found before."""
    ask_each_time(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def undrawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        undraw(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Nobody waits for the disk, for no test cuts the power; those that ask what is synced, and when, watch the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def drawn(undrawn) -> Iterator[None]:
    """Reports have their charts."""
    with pytest.MonkeyPatch.context() as patch:
        draw(patch)
        yield


@pytest.fixture(scope="session")
def registries(tmp_path_factory) -> Iterator[Path]:
    """Places for budgets, one after the other; `mktemp` would look at all folders of the session for each."""
    folder = tmp_path_factory.mktemp("registries")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_registry(registries, monkeypatch) -> Path:
    """Lifetime budgets that a test sets are known to no other test, and never to the user who runs them."""
    folder = next(registries) / "budgets"
    folder.parent.mkdir()
    monkeypatch.setenv("DPFED_BUDGETS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def same_random_state():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture
def cifar10() -> Path:
    """The real CIFAR-10 as Parquet, where it is."""
    if not CIFAR10.is_dir():
        pytest.skip(f"needs the CIFAR-10 Parquet files in {CIFAR10}")
    return CIFAR10
