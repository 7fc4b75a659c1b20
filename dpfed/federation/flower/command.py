"""Flower's command line, as the operator of a SuperLink on this machine gives it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli_w

from dpfed.errors import UserError
from dpfed.federation.provisioning.services import FLOWER
from dpfed.paths import without_proxy

CONNECTION = "federation"  # what the operator's Flower configuration calls the SuperLink
HOST = "127.0.0.1"
START = 120.0  # seconds that a program of Flower's may take, on a busy machine


class Unavailable(UserError):
    """The SuperLink is not there, or not yet: whoever asks tries again."""


class FlowerCommand:
    """The command ``flwr``.

    Args:
        home: Flower's folder, of this operator.
        port: of the SuperLink, on loopback.
        authority: the certificate that the SuperLink's own is signed by.

    Attributes:
        environment: of its processes.
    """

    def __init__(self, home: Path, port: int, authority: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        connection = {"address": f"{HOST}:{port}", "root-certificates": str(authority)}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {CONNECTION: connection}}))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {"FLWR_HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.environment = {**os.environ, **without_proxy(os.environ), **FLOWER, **own}

    def facts(self, *words: str) -> dict[str, Any]:
        """What a command says, as JSON.

        Raises:
            Unavailable: if it fails.
        """
        output = self.text(*words, "--format", "json")
        try:
            said = json.loads(output[output.index("{") :])
        except ValueError as error:
            raise Unavailable(f"flwr {' '.join(words)} says: {output.strip()[-500:]} [flower-output]") from error
        if not said.get("success", True):  # it ends with 0 all the same
            raise Unavailable(f"flwr {' '.join(words)} says: {said.get('error-message', output.strip()[-500:])} [flower-error]")
        return said

    def text(self, *words: str) -> str:
        """What a command prints.

        Raises:
            Unavailable: if it fails, or does not end in time.
        """
        command = [self._program(), *words]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=START, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"flwr {' '.join(words)} took over {START:.0f} s: the SuperLink hangs. [flower-hangs]") from error
        if done.returncode:
            raise Unavailable(f"flwr {' '.join(words)} says: {(done.stdout + done.stderr).strip()[-500:]} [flower-exit]")
        return done.stdout

    def show(self, *words: str) -> None:
        """A command whose output the operator sees; the end of this process ends it."""
        with subprocess.Popen([self._program(), *words], env=self.environment, stdin=subprocess.DEVNULL) as process:
            try:
                process.wait()
            except BaseException:
                process.terminate()
                raise

    def _program(self) -> str:
        return shutil.which("flwr", path=self.environment["PATH"]) or "flwr"
