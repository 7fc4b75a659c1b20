"""Flower's command line, as the operator of a SuperLink on this machine uses it."""

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
from dpfed.federation.flower.app_folder import require_flower
from dpfed.federation.provisioning.services import FLOWER
from dpfed.paths import without_proxy

CONNECTION = "federation"  # name of the SuperLink in the operator's Flower configuration
HOST = "127.0.0.1"
START = 120.0  # seconds that one of Flower's programs may take, on a busy machine


class Unavailable(UserError):
    """Raised if a command of Flower fails, or no SuperLink listens.

    Often the SuperLink has not started yet, so the caller may try again.
    """


class FlowerCommand:
    """Runs Flower's command ``flwr``, as the operator does.

    Args:
        home: Flower's home folder for this operator.
        port: Port of the SuperLink, on loopback.
        authority: Certificate of the authority that signed the SuperLink's certificate.

    Attributes:
        environment: Environment variables of the command's processes.

    Raises:
        UserError: If Flower is not installed, or its program cannot be found.
    """

    def __init__(self, home: Path, port: int, authority: Path) -> None:
        require_flower()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        program = shutil.which("flwr", path=path)
        if program is None:
            raise UserError(
                f"Flower's program flwr is neither in {Path(sys.executable).parent} nor in a folder of PATH: repeat"
                " pip install 'dpfed[flower]' in this environment. [flower-no-program]"
            )
        self._program = program
        home.mkdir(parents=True, exist_ok=True)
        connection = {"address": f"{HOST}:{port}", "root-certificates": str(authority)}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {CONNECTION: connection}}))
        variables = {"FLWR_HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.environment = {**os.environ, **without_proxy(os.environ), **FLOWER, **variables}

    def facts(self, *words: str) -> dict[str, Any]:
        """Runs a command and returns its JSON output.

        Args:
            words: Words of the command line after ``flwr``.

        Raises:
            Unavailable: If the command fails, does not end in time, or prints no JSON object.
        """
        output = self.text(*words, "--format", "json")
        try:
            said = json.loads(output[output.index("{") :])
        except ValueError as error:
            raise Unavailable(f"flwr {' '.join(words)} says: {output.strip()[-500:]} [flower-output]") from error
        if not said.get("success", True):  # the exit code is 0 even then
            raise Unavailable(f"flwr {' '.join(words)} says: {said.get('error-message', output.strip()[-500:])} [flower-error]")
        return said

    def text(self, *words: str) -> str:
        """Runs a command and returns its output.

        Args:
            words: Words of the command line after ``flwr``.

        Raises:
            Unavailable: If the command fails, or does not end in time.
        """
        command = [self._program, *words]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=START, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"flwr {' '.join(words)} took more than {START:.0f} s: restart the SuperLink, then try again. [flower-hangs]"
            ) from error
        if done.returncode:
            raise Unavailable(f"flwr {' '.join(words)} says: {(done.stdout + done.stderr).strip()[-500:]} [flower-exit]")
        return done.stdout

    def show(self, *words: str) -> None:
        """Runs a command and shows the operator its output; if this process is interrupted, the command ends, too.

        The exit code is ignored: a failed command raises no error.
        """
        with subprocess.Popen([self._program, *words], env=self.environment, stdin=subprocess.DEVNULL) as process:
            try:
                process.wait()
            except BaseException:
                process.terminate()
                raise
