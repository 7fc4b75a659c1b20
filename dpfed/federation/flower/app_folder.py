"""The folder that `flwr run` takes: both thin apps and what Flower expects to know of them, wherever dpfed is installed.

Also here: the Flower that dpfed is written for; this file imports nothing of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

import dpfed
from dpfed.errors import UserError

# As [tool.flwr.app] of the repository's pyproject.toml, which an installed package does not have.
APP: dict[str, Any] = {
    "publisher": "dpfed",
    "fab-include": ["clients/*.py", "server/*.py"],
    "components": {"serverapp": "server.app:app", "clientapp": "clients.app:app"},
    "config": {"federation": "", "run": ""},
}
_ENTRIES = {"clients/app.py": "client_app", "server/app.py": "server_app"}  # Flower bundles files of the folder alone


def make_app_folder(folder: Path) -> Path:
    """Writes the folder, which must not exist, and returns it.

    Raises:
        UserError: if it cannot be made.
    """
    project = {"name": "dpfed", "version": dpfed.__version__, "description": "Institutions that keep their records"}
    try:
        folder.mkdir(parents=True)
        for name, module in _ENTRIES.items():
            (folder / name).parent.mkdir()
            entry = f'from dpfed.federation.flower.{module} import app\n\n__all__ = ["app"]\n'  # Flower looks for it there
            (folder / name).write_text(entry, encoding="utf-8")
        content = {"project": {**project, "license": "Apache-2.0"}, "tool": {"flwr": {"app": APP}}}
        (folder / "pyproject.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    except OSError as error:
        reason = "it exists" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot make {folder}: {reason}; choose another folder. [flower-app-folder]") from error
    return folder


FLOWER_VERSION = "1.41"
