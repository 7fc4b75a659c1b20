"""Hidden files begin with a dot; file systems and programs leave some behind, such as ``.nfs0001`` and ``.DS_Store``."""

from __future__ import annotations

from pathlib import Path


def is_hidden(path: Path) -> bool:
    """Returns whether the name of a file or folder begins with a dot."""
    return path.name.startswith(".")


def visible_files(folder: Path, suffix: str) -> list[Path]:
    """Returns a folder's entries whose names end with `suffix`, sorted, without hidden ones; ``[]`` if there is no folder."""
    return sorted(path for path in folder.glob(f"*{suffix}") if not is_hidden(path))
