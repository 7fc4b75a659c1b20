"""The command with whatever somebody may type: done or refused in a sentence with exit code 2, in time, and nothing lost."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

import dpfed.runs.pretraining
import dpfed.training.steps
from dpfed.cli import main
from dpfed.config import parse_config
from dpfed.data.generated.shapes import write_shapes
from dpfed.errors import UserError
from tests.fuzz.hostile import KEYS, NUMBERS, TEXTS, VALUES, spelt
from tests.fuzz.profiles import efforts

_STOPPED = "stopped by the test, where training begins."
_MEMORY = 12 << 30  # bytes of address space: what asks for more is stopped here instead of by the machine


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A folder as people have it: records in several forms, a configuration, a sweep, a finished run and an unfinished one."""
    desk = tmp_path_factory.mktemp("desk")
    write_shapes(desk / "store", train=64, validation=0, test=32)
    (desk / "images" / "a").mkdir(parents=True)
    for number in range(6):
        Image.fromarray(np.full((9, 8, 3), number * 40, np.uint8)).save(desk / "images" / "a" / f"{number}.png")
    (desk / "table.csv").write_text("filepath,title\n" + "".join(f"images/a/{n}.png,number {n}\n" for n in range(6)))
    config = parse_config(
        {
            "name": "tiny",
            "data": {"source": "store", "path": str(desk / "store"), "size": 16},
            "model": {"kind": "image-text", "width": 8, "text_width": 16, "text_layers": 1, "vocabulary": 64, "embedding": 8},
            "bounding": {"group_size": 4, "engine": "loop"},
            "privacy": {"epsilon": 8.0, "accountant": "rdp", "batch": 16, "steps": 2},
            "training": {"device": "cpu"},
            "evaluation": {"tasks": ["retrieval"]},
        }
    )
    (desk / "tiny.toml").write_text(config.dump())
    (desk / "sweep.toml").write_text('[[runs]]\nname = "a"\n[runs.set]\n"privacy.epsilon" = 4.0\n')
    dpfed.runs.pretraining.pretrain(config, desk / "done")
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(UserError):
        patch.setattr(dpfed.training.steps, "train", _stop)
        dpfed.runs.pretraining.pretrain(config, desk / "half")
    return desk


def _stop(*_: object) -> None:
    raise UserError(_STOPPED)


@pytest.fixture
def bounded_memory():
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _lies_there(desk: Path) -> dict[str, tuple[int, int, int]]:
    """What is on the desk, down to the time at which each file was last written."""
    entries = {}
    for path in desk.rglob("*"):
        told = os.lstat(path)
        if not path.name.startswith(".lock"):  # taken and let go
            entries[str(path)] = (told.st_mode, told.st_ino, 0 if path.is_dir() else told.st_mtime_ns)
    return entries


def _type(words: list[str], desk: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["dpfed", *words])
        patch.setattr(dpfed.training.steps, "train", _stop)
        patch.chdir(desk)
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else (0 if stopped.code is None else 1)
    os.chdir(before)
    return code, out.getvalue(), err.getvalue()


PLACES = st.one_of(
    st.sampled_from(["store", "images", "table.csv", "tiny.toml", "sweep.toml", "done", "half", "new", "new/er", ".", ""]),
    st.sampled_from(
        "done/model done/ledger.jsonl done/privacy_card.md store/manifest.json /dev/null /proc/self/mem tiny.toml/x".split()
    ),
    TEXTS,
)
ANYTHING = st.one_of(PLACES, NUMBERS.map(spelt), TEXTS)
_SETS = st.builds("{}={}".format, st.sampled_from(KEYS), VALUES.map(spelt))


def _option(name: str, value: st.SearchStrategy) -> st.SearchStrategy[list[str]]:
    """An option with a value, or not given at all."""
    return st.one_of(st.just([]), value.map(lambda text: [name, str(text)]))


def _command(*words: object) -> st.SearchStrategy[list[str]]:
    """A command line of fixed words, drawn ones, and drawn lists of words."""
    drawn = [
        st.just([word]) if isinstance(word, str) else word.map(lambda x: x if isinstance(x, list) else [x]) for word in words
    ]
    return st.tuples(*drawn).map(lambda parts: [word for part in parts for word in part])


_WHOLE = st.one_of(st.sampled_from(["0", "-1", "1", "3", "100000", "10000000000", "x", "1.5", "nan", ""]), NUMBERS.map(spelt))
_CLUSTER, _TASK = st.sampled_from(["torchrun", "", "slurm"]), st.one_of(TEXTS, st.sampled_from(["knn", "zero_shot"]))
_NEW = st.sampled_from(["new", "store", "done", "tiny.toml", "new/er", "/proc/x", ""])
_JSON = st.sampled_from([[], ["--json"]])
COMMANDS = st.one_of(
    _command(
        "pretrain", PLACES, _option("--run", PLACES), _option("--set", _SETS), _option("--set", _SETS), _option("--set", TEXTS)
    ),
    _command("pretrain", "tiny.toml", "--run", "new", _option("--set", _SETS), _option("--set", _SETS)),
    _command(
        "pretrain",
        "tiny.toml",
        "--run",
        "new",
        "--federated",
        _WHOLE,
        _option("--drops", _WHOLE),
        _option("--colluders", _WHOLE),
        _option("--skew", _WHOLE),
        _option("--trust", st.sampled_from(["central", "secure", "x"])),
    ),
    _command("pretrain", "tiny.toml", "--run", "new", _option("--cluster", _CLUSTER), _option("--workers", _WHOLE)),
    _command("resume", PLACES),
    _command("evaluate", PLACES, _option("--split", TEXTS), _option("--task", _TASK)),
    _command("report", PLACES, "--out", _NEW),
    _command("export", PLACES, _NEW),
    _command("sweep", PLACES, PLACES, "--runs", "new", _option("--set", _SETS)),
    _command(
        "privacy",
        st.sampled_from(["calibrate", "account"]),
        "--records",
        _WHOLE,
        "--batch",
        _WHOLE,
        "--steps",
        _WHOLE,
        _option("--epsilon", _WHOLE),
        _option("--noise-multiplier", _WHOLE),
        _option("--delta", _WHOLE),
    ),
    _command(
        "data", "import", PLACES, PLACES, _option("--size", _WHOLE), _option("--validation", _WHOLE), _option("--format", TEXTS)
    ),
    _command("data", "inspect", PLACES),
    _command("audit", "membership", PLACES, _option("--non-members", PLACES), "--records", _WHOLE),
    _command(
        "site",
        "setup",
        PLACES,
        "--coordinator",
        TEXTS,
        "--store",
        PLACES,
        _option("--budget", _WHOLE),
        _option("--declared", _WHOLE),
    ),
    _command("site", st.sampled_from(["join", "leave"]), PLACES, _option("--x", TEXTS)),
    _command("federation", "show", PLACES),
    _command("budget", "set", st.sampled_from(["done", "new", "", "tiny.toml"]), "--epsilon", _WHOLE, "--delta", _WHOLE),
    _command("budget", st.sampled_from(["show", "history", "settle"]), PLACES, _JSON),
    _command("privacy", "ledger", PLACES, _JSON),
    _command("privacy", "verify", PLACES, PLACES),
    _command("config", st.sampled_from(["show", "list", "keys"]), TEXTS),
    _command("start", st.sampled_from(["store", "done", "table.csv", "new", "images", "nothing of this name"])),
    st.lists(ANYTHING, max_size=4),
)
_MADE = ("new", "stores", "runs", "comparison.html")  # where a command that works may put something


@pytest.mark.long
@efforts
def test_anything_that_can_be_typed(effort, desk, bounded_memory) -> None:
    before = _lies_there(desk)

    def check(words: list[str]) -> None:
        if any("\0" in word for word in words):
            return  # no shell can pass it on
        code, out, err = _type(words, desk)
        assert code in (0, 2), (code, err)
        assert "Traceback" not in out + err
        if code and err.startswith("error: "):
            assert err.replace("\n", "").isprintable() and len(err) < 3000, repr(err)
        after = {name: told for name, told in _lies_there(desk).items() if Path(name).relative_to(desk).parts[0] not in _MADE}
        if after != before:
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            known = set(before)
            before.clear()  # so that one failure is not one of all commands that follow
            before.update({name: told for name, told in after.items() if name in known})
            for name in set(after) - known:
                shutil.rmtree(name) if Path(name).is_dir() and not Path(name).is_symlink() else Path(name).unlink(
                    missing_ok=True
                )
            assert (code == 0 or _STOPPED in err) and _meant(words, changed), (words, err, sorted(changed))
        for name in _MADE:
            shutil.rmtree(desk / name, ignore_errors=True)
            (desk / name).unlink(missing_ok=True) if not (desk / name).is_dir() else None

    effort.tries(150, check, COMMANDS)


def _meant(words: list[str], changed: set[str]) -> bool:
    """Whether a command that worked may have changed these: what it made under a name that was typed, or a run's own files."""
    if words[0] in ("resume", "evaluate", "report", "audit"):
        return True
    typed = [part for word in words[1:] for part in (word, word.partition("=")[2].strip("'\""))]  # also --set data.stores='a'
    named = [word.rstrip("/") for word in typed if word]
    return all(any(f"/{name}" in f"{path}/" or path.endswith(name) for name in named) for path in changed)


@pytest.mark.long
def test_a_run_that_goes_on_writes_its_own_metrics_only(desk) -> None:
    before = _lies_there(desk)
    code, _, err = _type(["resume", "half"], desk)
    after = _lies_there(desk)
    assert code == 2 and _STOPPED in err
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {str(desk / "half" / "metrics.jsonl")}
