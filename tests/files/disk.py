"""What was forced to the disk, and what got its name, in order; and a disk that is full."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Iterator
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


@contextlib.contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, room: int) -> Iterator[None]:
    """While the block lasts, Python's own files take so many bytes more, in part if need be, and no forcing helps."""
    left, real = [room], builtins.open

    class Full(io.FileIO):
        def write(self, content) -> int:
            if not left[0] and len(content):
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = bytes(content)[: left[0]]
            left[0] -= len(taken)
            return super().write(taken)

    def opened(file, mode="r", buffering=-1, *args, **kwargs):
        if set(mode) & set("wax") and "b" in mode:
            raw = Full(file, mode.replace("b", ""))
            return raw if buffering == 0 else io.BufferedWriter(raw)
        return real(file, mode, buffering, *args, **kwargs)

    def fsync(descriptor: int) -> None:
        if not left[0] or room > 50:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", opened)
        patch.setattr(os, "fsync", fsync)
        yield
