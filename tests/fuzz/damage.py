"""Ways to damage bytes and files, drawn by hypothesis."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

_PIECES = [b"", b"\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"../", b"NaN", b"-1", b"[[[[", b"\xef\xbb\xbf", b"\r\n"]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content, cut, flipped, overwritten, repeated or with a piece in it; sometimes as it is."""
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        way = draw(st.sampled_from(["cut", "flip", "write", "insert", "repeat", "remove"]))
        if way == "cut":
            content = content[:place]
        elif way == "flip" and content:
            content = content[:place] + bytes([content[place] ^ 1 << draw(st.integers(0, 7))]) + content[place + 1 :]
        elif way in ("write", "insert"):
            piece = draw(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=12)))
            content = content[:place] + piece + content[place + (len(piece) if way == "write" else 0) :]
        elif way == "repeat":
            content = content[: place + 64] + content[place:]
        else:
            content = content[:place] + content[place + draw(st.integers(1, 64)) :]
    return content


REPLACEMENTS = ("absent", "empty", "directory", "link to nothing", "link to itself", "link outside", "pipe", "unreadable")


def replace(file: Path, how: str, outside: Path) -> None:
    """Puts something else in a file's place.

    Args:
        file: a file or folder, which goes.
        how: one of `REPLACEMENTS`.
        outside: a file that a link may point to.
    """
    shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
    ways: dict[str, Callable[[], object]] = {
        "absent": lambda: None,
        "empty": file.touch,
        "directory": file.mkdir,
        "link to nothing": lambda: file.symlink_to(file.parent / "nowhere"),
        "link to itself": lambda: file.symlink_to(file),
        "link outside": lambda: file.symlink_to(outside),
        "pipe": lambda: os.mkfifo(file),
        "unreadable": lambda: file.symlink_to("/proc/self/mem"),
    }
    ways[how]()
