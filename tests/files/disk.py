"""What was forced to the disk, and what got its name, in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

Event = tuple[str, str] | tuple[str, str, bytes | None]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """From now on: ``("sync", name, content)`` for a file, or content None for a folder, and ``("name", name)``."""
    events: list[Event] = []
    real = {"fsync": os.fsync, "replace": os.replace, "rename": os.rename}

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        real["fsync"](descriptor)
        events.append(("sync", path.name, None if path.is_dir() else path.read_bytes()))

    def named(how: str):
        def call(source, target) -> None:
            real[how](source, target)
            events.append(("name", Path(target).name))

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", named("replace"))
    monkeypatch.setattr(os, "rename", named("rename"))
    return events
