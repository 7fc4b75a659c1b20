"""The data root that importers are tried on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.data.views.files_of_all_modes import colours, encoded
from tests.fuzz.data_root import PNG, SECRET


@pytest.fixture(autouse=True)
def disk_that_answers(monkeypatch) -> None:
    """No waiting for the disk, which on a busy machine takes longer than the fuzzers' clock allows."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A data root with two images, a pipe and links that lead out of it, beside a file that no import may read."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    for name in ("a.png", "b.PNG", "sub/c.png"):
        (root / name).write_bytes(PNG)
    note = PngInfo()
    note.add_text("note", SECRET.decode())
    (tmp_path / "secret.png").write_bytes(encoded(Image.fromarray(colours(4, 4)), "PNG", pnginfo=note))
    return tmp_path
