"""Makes the app folder for `flwr run`: files that import dpfed's ServerApp and ClientApp, and their Flower settings.

The module also states the version of Flower that dpfed is written for, and whether Flower is installed. It does not import
Flower.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w

import dpfed
from dpfed.errors import UserError

# A copy of [tool.flwr.app] in the repository's pyproject.toml, which an installed package does not have.
APP: dict[str, Any] = {
    "publisher": "dpfed",
    "fab-include": ["clients/*.py", "server/*.py"],
    "components": {"serverapp": "server.app:app", "clientapp": "clients.app:app"},
    "config": {"federation": "", "run": ""},
}
_ENTRIES = {"clients/app.py": "client_app", "server/app.py": "server_app"}  # Flower bundles only files of the folder


def make_app_folder(folder: Path) -> Path:
    """Writes the app folder, which must not exist, and returns it.

    Raises:
        UserError: If the folder cannot be made.
    """
    project = {"name": "dpfed", "version": dpfed.__version__, "description": "Institutions that keep their records"}
    try:
        folder.mkdir(parents=True)
        for name, module in _ENTRIES.items():
            (folder / name).parent.mkdir()
            entry = f'from dpfed.federation.flower.{module} import app\n\n__all__ = ["app"]\n'  # where Flower looks for it
            (folder / name).write_text(entry, encoding="utf-8")
        content = {"project": {**project, "license": "Apache-2.0"}, "tool": {"flwr": {"app": APP}}}
        (folder / "pyproject.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    except OSError as error:
        reason = "it exists" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot make {folder}: {reason}; choose another folder. [flower-app-folder]") from error
    return folder


def require_flower() -> None:
    """Checks that Flower is installed.

    Raises:
        UserError: If it is not; the message has the command that installs it.
    """
    try:
        version("flwr")
    except PackageNotFoundError as error:
        raise UserError("this command needs Flower: pip install 'dpfed[flower]'. [flower-missing]") from error


FLOWER_VERSION = "1.41"
