"""A whole federation on one machine: SuperLink and SuperNodes with TLS and authentication, as `make federation` starts it.

The commands are those that operators give on machines of their own; docs/a-site-in-15-minutes.md explains them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from dpfed.federation.demo.processes import Processes, processes
from dpfed.federation.provisioning.certificates import make_certificates, make_node_key
from dpfed.files.atomic import create_file

SUPERLINK = "superlink"  # the process's name
CONNECTION = "loopback"  # what the operator's Flower configuration calls the SuperLink
RUN = "run"  # name of the process that starts a run and prints what it logs

_HOST = "127.0.0.1"
_START = 120.0  # seconds that a process of Flower's may take to start, on a busy machine
_AGAIN = 5.0  # seconds after which a SuperNode that was refused is started again
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


class Loopback:
    """SuperLink, SuperNodes and operator on one machine.

    Args:
        folder: for keys, Flower's own files and configuration.
        sockets: where each site's worker answers, by the site's name.
        members: starts the processes, and ends them; `loopback` looks after that.
        told: hears what is started.

    Attributes:
        certificates: folder with ``ca.crt``, ``server.pem``, ``server.key``, and each site's key pair.
        port: the SuperLink's.
        members: the processes, by name: `SUPERLINK`, for each site its SuperNode ("north") and the app of that ("north-app"),
            and `RUN`; more may be started in it, such as site workers.
    """

    def __init__(
        self, folder: Path, sockets: Mapping[str, Path], members: Processes, told: Callable[[str], None] = lambda text: None
    ) -> None:
        self._told = told
        self._folder, self._sockets, self.members = folder.resolve(), dict(sockets), members
        self.port, *ports = free_ports(1 + len(sockets))
        self._ports = dict(zip(sockets, ports, strict=True))
        self.certificates = self._folder / "certificates"
        make_certificates(self.certificates, [_HOST, "localhost"])
        for name in sockets:
            make_node_key(self.certificates, name)
            create_file(self._folder / f"{name}.secret", secrets.token_bytes(32), mode=0o600)
        self._through: dict[str, int | None] = {}  # ports of the proxies that SuperNodes use
        self._connections: dict[str, dict[str, str]] = {}
        self.connect(CONNECTION, self.port)

    def start(self, meanwhile: Callable[[Loopback], None] | None = None) -> None:
        """Starts the SuperLink, registers the SuperNodes' keys with it, and starts the SuperNodes.

        Args:
            meanwhile: is called while the SuperNodes load, which takes seconds.
        """
        keys = self.certificates
        command = ["flower-superlink", "--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem"]
        command += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth", "--host", _HOST, "--port", self.port]
        command += ["--disable-runtime-dependency-installation"]
        self._told("starting Flower's SuperLink, where messages pass")
        self.members.start(SUPERLINK, command, self._environment(SUPERLINK))
        self.members.wait_for(SUPERLINK, "Uvicorn running", _START)
        self._told(f"starting Flower's SuperNodes of {', '.join(self._sockets)}, over TLS")
        with ThreadPoolExecutor(len(self._sockets)) as pool:  # each is a process that takes seconds to load
            list(pool.map(self._register, self._sockets))
        for name in self._sockets:
            self.start_node(name)
        if meanwhile is not None:
            meanwhile(self)
        for name in self._sockets:
            self.wait_for_node(name)
            self._told(f"{name} is connected")

    def _register(self, name: str) -> None:
        self.flwr("supernode", "register", self.certificates / f"{name}.pub", CONNECTION, "--name", name)

    def start_node(self, name: str, port: int | None = None) -> None:
        """Starts a SuperNode and, in a process that stays, its app. After a kill, follow it by `wait_for_node`.

        Args:
            name: of the site.
            port: of a proxy in front of the SuperLink; default: the SuperLink's own.
        """
        self._through[name] = port
        config = self._folder / f"{name}.toml"
        config.write_text(tomli_w.dumps({"socket": str(self._sockets[name].resolve())}))
        command = [sys.executable, "-m", "dpfed", "site", "supernode", "--root-certificates", self.certificates / "ca.crt"]
        command += ["--superlink", f"{_HOST}:{port or self.port}", "--host", _HOST, "--port", self._ports[name]]
        command += ["--auth-supernode-private-key", self.certificates / name, "--node-config", config]
        self.members.start(name, [*command, "--isolation", "process", *self._secret(name)], self._environment(name))
        self.start_app(name, [sys.executable, "-m", "dpfed", "site", "app"])

    def start_app(self, name: str, program: Sequence[object]) -> None:
        """Starts the process that handles a SuperNode's messages, in the place of the one that did so before.

        Args:
            name: of the site.
            program: the command without its options.
        """
        self.members.kill(f"{name}-app")
        command = [*program, "--runtime-api-address", f"{_HOST}:{self._ports[name]}", *self._secret(name)]
        self.members.start(f"{name}-app", command, self._environment(name))

    def wait_for_node(self, name: str) -> None:
        """Returns when a SuperNode is connected, and starts it again while the SuperLink refuses it.

        After a SuperNode was killed, the SuperLink takes it to be there for another minute, and refuses a second one.

        Raises:
            RuntimeError: if it does not come, with the end of its log.
        """
        deadline = time.monotonic() + _START
        while True:
            try:
                return self.members.wait_for(name, "SuperNode ID", _START)
            except RuntimeError:
                if self.members.running(name) or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN)
                self.start_node(name, self._through[name])

    def restart(self) -> None:
        """Brings a killed SuperLink back. It has forgotten its SuperNodes, so they are registered and started anew, too."""
        for name in (*self._sockets, SUPERLINK):
            self.members.kill(name)
        self.start()

    def kill_server_app(self) -> None:
        """Kills the process in which the ServerApp runs (SIGKILL)."""
        for pid in self.members.descendants(SUPERLINK, "flwr-serverapp"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def submit(self, app: Path, config: Mapping[str, Any], name: str = RUN) -> None:
        """Starts a run, as the operator does: ``flwr run APP CONNECTION --stream``.

        Args:
            app: folder with the app's ``pyproject.toml``.
            config: values for keys that its ``[tool.flwr.app.config]`` has.
            name: of the process, which prints the ServerApp's log and ends with the run: ``members.follow(name)``.
        """
        file = self._folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(config))
        command = ["flwr", "run", app, CONNECTION, "--stream", "--run-config", file]
        self.members.start(name, command, self._environment("operator"))

    def completed(self, name: str = RUN) -> bool:
        """Whether a run that has ended did so without an error."""
        started = re.search(r"started run (\d+)", self.members.text(name))
        if not started:
            return False
        listing = self.flwr("list", CONNECTION, "--run-id", started[1], "--format", "json").stdout
        return json.loads(listing[listing.index("{") :])["runs"][0]["status"] == "finished:completed"

    def connect(self, name: str, port: int) -> None:
        """Adds a connection to the operator's Flower configuration."""
        self._connections[name] = {"address": f"{_HOST}:{port}", "root-certificates": str(self.certificates / "ca.crt")}
        home = Path(self._environment("operator")["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": self._connections}))

    def flwr(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command of the operator's to its end.

        Args:
            arguments: of ``flwr``.
            check: whether it must succeed.

        Raises:
            RuntimeError: if it did not, with its output.
        """
        environment = {**self.members.environment(), **self._environment("operator")}
        command = [shutil.which("flwr", path=environment["PATH"]) or "flwr", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_START, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done

    def _secret(self, name: str) -> list[object]:
        """What a SuperNode and its app share."""
        return ["--superexec-auth-secret-file", self._folder / f"{name}.secret"]

    def _environment(self, role: str) -> dict[str, str]:
        """Each role has a Flower home of its own, outside the app's folder."""
        return {**_ENVIRONMENT, "FLWR_HOME": str(self._folder / "flower" / role)}


@contextlib.contextmanager
def loopback(
    folder: Path,
    sockets: Mapping[str, Path],
    told: Callable[[str], None] = lambda text: None,
    meanwhile: Callable[[Loopback], None] | None = None,
) -> Iterator[Loopback]:
    """A federation that runs; it ends with the block, also by Ctrl-C or SIGTERM.

    Args:
        folder: a new one, for keys, Flower's own files, and logs (``logs/NAME.log``).
        sockets: where each site's worker answers, by the site's name. The workers may come later, and go.
        told: hears what is started.
        meanwhile: see `Loopback.start`.
    """
    with processes(folder / "logs") as members:
        federation = Loopback(folder, sockets, members, told)
        federation.start(meanwhile)
        yield federation


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((_HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
