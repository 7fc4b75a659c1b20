"""The folder that `flwr run` takes: both thin apps and what Flower wants to know of them, wherever dpfed is installed.

    python -m server.app_folder app
    flwr run app federation --stream --run-config ...

In a checkout, `flwr run .` does the same.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import tomli_w

import clients
import dpfed
import server
from dpfed.errors import UserError

# As [tool.flwr.app] of the repository's pyproject.toml, which an installed package does not have.
APP: dict[str, Any] = {
    "publisher": "dpfed",
    "fab-include": ["clients/*.py", "server/*.py"],
    "components": {"serverapp": "server.app:app", "clientapp": "clients.app:app"},
    "config": {"federation": "", "run": ""},
}


def make_app_folder(folder: Path) -> Path:
    """Writes the folder, which must not exist, and returns it.

    Raises:
        UserError: if it cannot be made.
    """
    project = {"name": "dpfed", "version": dpfed.__version__, "description": "Institutions that keep their records"}
    try:
        folder.mkdir(parents=True)
        for package in (clients, server):
            home = Path(str(package.__file__)).parent
            (folder / home.name).mkdir()
            for file in home.glob("*.py"):
                shutil.copyfile(file, folder / home.name / file.name)
        content = {"project": {**project, "license": "Apache-2.0"}, "tool": {"flwr": {"app": APP}}}
        (folder / "pyproject.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    except OSError as error:
        reason = "it exists" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot make {folder}: {reason}; choose another folder.") from error
    return folder


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m server.app_folder", description="Makes the folder that `flwr run` takes.")
    parser.add_argument("folder", type=Path, help="must not exist")
    options = parser.parse_args(arguments)
    try:
        print(make_app_folder(options.folder))
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
