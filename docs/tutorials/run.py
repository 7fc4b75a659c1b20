"""Executes the tutorials and keeps their output with them: `make tutorials`.

    python docs/tutorials/run.py [NAME ...] [--check]

`--check` executes them and writes nothing.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_TIMEOUT = 900  # seconds for a cell, on a busy machine
_TEMPORARY = re.compile(r"(?:/private)?/(?:tmp|var/folders)/[\w./-]*?dpfed-\w+|\bdpfed-[a-z0-9_]{8}(?=/)")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def execute(path: Path) -> Any:
    """A notebook with new output; an error in a cell is one here, too."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    # The notebooks' `!dpfed` is the one of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"COLUMNS": "120", "TTY_COMPATIBLE": "0", "PYTHONWARNINGS": "ignore"}  # no bars that are drawn over
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")  # through files of this user, and no open port
    NotebookClient(book, km=kernel, timeout=_TIMEOUT, coalesce_streams=True).execute(cleanup_kc=True)
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # when it ran
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _plain(output["text"])
    return book


def _plain(text: str) -> str:
    """What a command printed, without colours, names of temporary folders and empty lines."""
    lines = _TEMPORARY.sub("~", _ESCAPES.sub("", text)).replace("\r", "").split("\n")
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def failed(book: Any) -> list[str]:
    """Output of commands that ended with a sentence of refusal or a traceback, but for those that show one."""
    shown = [
        output["text"]
        for cell in book.cells
        if "verify better.md" not in cell.source
        for output in cell.get("outputs", [])
        if "text" in output
    ]
    return [text for text in shown if re.search(r"^(error: |Traceback )", text, re.MULTILINE)]


def main(names: list[str]) -> int:
    """The command line."""
    import nbformat

    check = "--check" in names
    wanted = [name for name in names if not name.startswith("-")]
    for path in sorted(HERE.glob("*.ipynb")):
        if wanted and path.stem not in wanted:
            continue
        print(f"executing {path.name}", flush=True)
        book = execute(path)
        if wrong := failed(book):
            print(wrong[0], file=sys.stderr)
            return 1
        if not check:
            nbformat.write(book, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
