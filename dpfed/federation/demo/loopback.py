"""A whole federation on one machine: SuperLink and SuperNodes with TLS and authentication, as `make federation` starts it.

The commands are those that operators give on their own machines; docs/a-site-in-15-minutes.md explains them.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from dpfed.federation.demo.processes import Processes, processes
from dpfed.federation.flower.command import CONNECTION, HOST, START, FlowerCommand
from dpfed.federation.provisioning.certificates import make_certificates, make_node_key
from dpfed.federation.provisioning.services import FLOWER
from dpfed.files.atomic import create_file

SUPERLINK = "superlink"  # name of the SuperLink's process
RUN = "run"  # name of the process that starts a run and prints what it logs

_AGAIN = 5.0  # seconds after which a SuperNode that was refused is started again


class Loopback:
    """Starts SuperLink and SuperNodes on one machine, and runs their operator's Flower commands.

    Args:
        folder: Folder for keys, Flower's own files and configuration.
        sockets: Socket of each site's worker, by the site's name.
        members: Processes of the federation; `loopback` ends them.
        told: Function that receives messages about what is started; default: ignores them.

    Attributes:
        certificates: Folder with ``ca.crt``, ``server.pem``, ``server.key``, and each site's key pair.
        port: Port of the SuperLink.
        members: Processes, by name: `SUPERLINK`, for each site its SuperNode ("north") and the SuperNode's app ("north-app"),
            and `RUN`; more may be started, such as site workers.
        flwr: Operator's command ``flwr``.

    Raises:
        UserError: If Flower is not installed, or the folder holds certificates or keys already.
    """

    def __init__(
        self, folder: Path, sockets: Mapping[str, Path], members: Processes, told: Callable[[str], None] = lambda text: None
    ) -> None:
        self._told = told
        self._folder, self._sockets, self.members = folder.resolve(), dict(sockets), members
        self.port, *ports = free_ports(1 + len(sockets))
        self._ports = dict(zip(sockets, ports, strict=True))
        self.certificates = self._folder / "certificates"
        make_certificates(self.certificates, [HOST, "localhost"])
        for name in sockets:
            make_node_key(self.certificates, name)
            create_file(self._folder / f"{name}.secret", secrets.token_bytes(32), mode=0o600)
        self._through: dict[str, int | None] = {}  # ports of the proxies that SuperNodes use
        self.flwr = FlowerCommand(self._folder / "flower" / "operator", self.port, self.certificates / "ca.crt")

    def start(self, meanwhile: Callable[[Loopback], None] | None = None) -> None:
        """Starts the SuperLink, registers the SuperNodes' keys with it, and starts the SuperNodes.

        Args:
            meanwhile: Function that is called while the SuperNodes load, which takes seconds; default: none.

        Raises:
            RuntimeError: If the SuperLink or a SuperNode does not start; the message has the end of its log.
            Unavailable: If Flower does not register a key.
        """
        keys = self.certificates
        command = ["flower-superlink", "--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem"]
        command += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth", "--host", HOST, "--port", self.port]
        command += ["--disable-runtime-dependency-installation"]
        self._told("starting Flower's SuperLink, where messages pass")
        self.members.start(SUPERLINK, command, self._environment(SUPERLINK))
        self.members.wait_for(SUPERLINK, "Uvicorn running", START)
        self._told(f"starting Flower's SuperNodes of {', '.join(self._sockets)}, over TLS")
        with ThreadPoolExecutor(len(self._sockets)) as pool:  # each is a process that takes seconds to load
            keys_of = [(str(keys / f"{name}.pub"), CONNECTION, "--name", name) for name in self._sockets]
            list(pool.map(lambda words: self.flwr.text("supernode", "register", *words), keys_of))
        for name in self._sockets:
            self.start_node(name)
        if meanwhile is not None:
            meanwhile(self)
        for name in self._sockets:
            self.wait_for_node(name)
            self._told(f"{name} is connected")

    def start_node(self, name: str, port: int | None = None) -> None:
        """Starts a SuperNode and, in a resident process, its app. If it was killed before, call `wait_for_node` next.

        Args:
            name: Name of the site.
            port: Port of a proxy in front of the SuperLink; default: the SuperLink's own.
        """
        self._through[name] = port
        config = self._folder / f"{name}.toml"
        config.write_text(tomli_w.dumps({"socket": str(self._sockets[name].resolve())}))
        command = [sys.executable, "-m", "dpfed", "site", "supernode", "--root-certificates", self.certificates / "ca.crt"]
        command += ["--superlink", f"{HOST}:{port or self.port}", "--host", HOST, "--port", self._ports[name]]
        command += ["--auth-supernode-private-key", self.certificates / name, "--node-config", config]
        self.members.start(name, [*command, "--isolation", "process", *self._secret(name)], self._environment(name))
        self.start_app(name, [sys.executable, "-m", "dpfed", "site", "app"])

    def start_app(self, name: str, program: Sequence[object]) -> None:
        """Starts the process that handles a SuperNode's messages, in the place of the process that did so before.

        Args:
            name: Name of the site.
            program: Command without its options.
        """
        self.members.kill(f"{name}-app")
        command = [*program, "--runtime-api-address", f"{HOST}:{self._ports[name]}", *self._secret(name)]
        self.members.start(f"{name}-app", command, self._environment(name))

    def wait_for_node(self, name: str) -> None:
        """Waits until a SuperNode is connected, and starts it again while the SuperLink refuses it.

        For a minute after a SuperNode was killed, the SuperLink still considers it connected and refuses a second SuperNode.

        Raises:
            RuntimeError: If the SuperNode does not connect; the message has the end of its log.
        """
        deadline = time.monotonic() + START
        while True:
            try:
                return self.members.wait_for(name, "SuperNode ID", START)
            except RuntimeError:
                if self.members.running(name) or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN)
                self.start_node(name, self._through[name])

    def submit(self, app: Path, config: Mapping[str, Any], name: str = RUN) -> None:
        """Starts a run, as the operator does: ``flwr run APP CONNECTION --stream``.

        Args:
            app: Folder with the app's ``pyproject.toml``.
            config: Values for keys of the app's ``[tool.flwr.app.config]``.
            name: Name for the process of this command, which ends with the run; default: `RUN`. The process prints the
                ServerApp's log, whose lines ``members.follow(name)`` yields.
        """
        file = self._folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(config))
        command = ["flwr", "run", app, CONNECTION, "--stream", "--run-config", file]
        self.members.start(name, command, self.flwr.environment)

    def _secret(self, name: str) -> list[object]:
        """Returns the options for the secret that a SuperNode and its app share."""
        return ["--superexec-auth-secret-file", self._folder / f"{name}.secret"]

    def _environment(self, role: str) -> dict[str, str]:
        """Returns the environment of a role, with a Flower home of its own, outside the app's folder."""
        return {**FLOWER, "FLWR_HOME": str(self._folder / "flower" / role)}


@contextlib.contextmanager
def loopback(
    folder: Path,
    sockets: Mapping[str, Path],
    told: Callable[[str], None] = lambda text: None,
    meanwhile: Callable[[Loopback], None] | None = None,
) -> Iterator[Loopback]:
    """Runs a federation until the block ends; Ctrl-C and SIGTERM end the federation, too.

    Args:
        folder: New folder for keys, Flower's own files, and logs (``logs/NAME.log``).
        sockets: Socket of each site's worker, by the site's name. The workers may start later, and restart.
        told: Function that receives messages about what is started; default: ignores them.
        meanwhile: Function that is called while the SuperNodes load, see `Loopback.start`.

    Yields:
        The running federation.

    Raises:
        UserError: If Flower is not installed, or does not register a key.
        RuntimeError: If the SuperLink or a SuperNode does not start; the message has the end of its log.
    """
    with processes(folder / "logs") as members:
        federation = Loopback(folder, sockets, members, told)
        federation.start(meanwhile)
        yield federation


def free_ports(count: int) -> list[int]:
    """Returns `count` ports of this machine's loopback interface on which no program listens now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
