"""What a command left in its folder: every file there can be read to its end, and nothing is a draft."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import safe_open

from dpfed.data.store.fingerprint import contents_of
from dpfed.data.store.records import RecordStore
from dpfed.files.atomic import DRAFT

_OWN = {"tmp.out", "tmp.err"}  # of the start itself
_OF_TORCH = ("torchinductor_", "torchelastic_")  # folders that PyTorch and torchrun keep among temporary files


def half_written(seed: Path, folder: Path) -> list[str]:
    """Sentences on what is wrong below a folder; files that are as in the seed are not looked at."""
    temporary = [left for left in sorted((folder / "tmp").iterdir()) if not left.name.startswith(_OF_TORCH)]
    wrong = [f"left {left.relative_to(folder)}" for left in temporary]
    for top, folders, files in os.walk(folder):
        here = Path(top)
        name = here.relative_to(folder)
        wrong += [f"left {name / entry}" for entry in (*folders, *files) if DRAFT in entry]
        if name == Path("out") and not folders and not files:
            wrong.append(f"left {name}, which is empty")
        if here == folder / "tmp":
            folders.clear()
        for file in files:
            if (name == Path(".") and file in _OWN) or _alike(here / file, seed / name / file):
                continue
            if why := _unreadable(here / file):
                wrong.append(f"{name / file}: {why}")
        if "store.json" in files and not _alike(here / "store.json", seed / name / "store.json"):
            if why := _unlike_its_fingerprint(here):
                wrong.append(f"{name}: {why}")
        if name.parts and name.parts[0] == "out" and name.parts[1:2] == ("stores",):
            wrong += [f"left {name / file}" for file in files if file.endswith(".lock")]
    return wrong


def _alike(one: Path, other: Path) -> bool:
    if not other.is_file() or one.is_symlink():
        return one.is_symlink()
    here, there = one.stat(), other.stat()
    return here.st_size == there.st_size and one.read_bytes() == other.read_bytes()


def _unreadable(path: Path) -> str:
    try:
        match path.suffix:
            case ".json":
                json.loads(path.read_text())
            case ".jsonl":
                text = path.read_text()
                [json.loads(line) for line in text.splitlines()]
                if text and not text.endswith("\n"):
                    return "its last line has no end"
            case ".toml":
                tomllib.loads(path.read_text())
            case ".parquet":
                pq.read_table(path)
            case ".arrow":
                with pa.memory_map(str(path)) as source:
                    pa.ipc.open_file(source).read_all()
            case ".safetensors":
                with safe_open(path, "pt") as file:
                    [file.get_tensor(key) for key in file.keys()]  # noqa: SIM118 it is no dictionary
            case ".html":
                if "</html>" not in path.read_text()[-200:]:
                    return "has no end"
            case ".md" | ".png" | ".key":
                if not path.stat().st_size:
                    return "is empty"
    except Exception as error:
        return f"cannot be read: {type(error).__name__}: {str(error)[:200]}"
    return ""


def _unlike_its_fingerprint(path: Path) -> str:
    try:
        store = RecordStore.open(path)
        fingerprint = contents_of(store, bytes.fromhex(store.contents_key or ""))["fingerprint"]
    except Exception as error:
        return f"is no store: {type(error).__name__}: {str(error)[:200]}"
    return "" if fingerprint == store.contents else "is not what its fingerprint says"
