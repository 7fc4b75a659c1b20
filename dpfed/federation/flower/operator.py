"""The operator's part of a provisioned federation: registers the SuperNodes' keys, and starts or resumes the run.

    dpfed federation run FOLDER

FOLDER is the folder that `dpfed federation provision` made. The SuperLink is on this machine, on loopback, and may start later.
During the run, keys that are added to FOLDER/nodes are registered, and the SuperNodes of keys that are removed are
unregistered. So keys can change, and sites can leave, during a run. After a crash, the same command resumes the run.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tomli_w

from dpfed.errors import UserError
from dpfed.federation.coordinator.folder import CoordinatorFolder
from dpfed.federation.flower.app_folder import make_app_folder
from dpfed.federation.flower.command import CONNECTION, HOST, START, FlowerCommand, Unavailable
from dpfed.federation.provisioning.provision import STATE, state_of
from dpfed.federation.provisioning.services import LINK_PORT
from dpfed.files.atomic import write_atomically
from dpfed.files.hidden import visible_files
from dpfed.files.reading import read_text

_LOOK = 2.0  # seconds between looks at the folder of keys
_GONE = ("unregistered", "deleted")
_KNOWN = "already in use"  # Flower's error for a key that was registered before, even if that SuperNode is unregistered


class Operator:
    """Registers SuperNodes and runs a federation, as its operator does.

    Args:
        folder: Folder that `dpfed federation provision` made.
        port: Port of the SuperLink, on loopback; default: the port for which the folder was provisioned.

    Raises:
        UserError: If the folder does not hold terms yet or is damaged, or if Flower is not installed.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self._folder = folder.absolute()
        CoordinatorFolder.open(self._folder / "federation")
        self._name, known = _provisioned(self._folder)
        self._port = port = known if port is None else port
        home = self._folder / "flower" / "operator"
        self._registered = home / "registered.json"
        self._flwr = FlowerCommand(home, port, self._folder / "certificates" / "inner" / "ca.crt")

    def wait_for_link(self) -> None:
        """Waits until the SuperLink listens.

        Raises:
            Unavailable: If the SuperLink does not listen in time.
        """
        deadline = time.monotonic() + START
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self._port)) == 0:
                    return
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"no SuperLink listens on {HOST}:{self._port}: start dpfed-superlink (or programs/superlink), "
                    "then try again. [flower-no-link]"
                )
            time.sleep(0.5)

    def register(self) -> None:
        """Registers SuperNodes whose keys are new in the folder of keys, and unregisters those whose keys are gone.

        Each change is recorded on disk at once: Flower takes no key twice, and does not tell to which key a SuperNode belongs.

        Raises:
            UserError: If the folder of keys is missing, or the list of registered keys is damaged.
            Unavailable: If one of Flower's commands fails.
        """
        if not (self._folder / "nodes").is_dir():  # a missing folder must not unregister every SuperNode
            raise UserError(f"{self._folder / 'nodes'} is missing: `dpfed federation provision` makes it. [flower-no-nodes]")
        wanted = {read_text(key): key for key in visible_files(self._folder / "nodes", ".pub")}
        listed = self._flwr.facts("supernode", "list", CONNECTION)["nodes"]
        there = {str(node["node-id"]) for node in listed if node["status"] not in _GONE}
        known = {key: entry for key, entry in self._entries().items() if entry[0] in there}  # a new SuperLink knows none
        for key in known.keys() - wanted.keys():
            node, name = known.pop(key)
            self._flwr.text("supernode", "unregister", node, CONNECTION)
            there.discard(node)
            write_atomically(self._registered, json.dumps(known, indent=1) + "\n")
            print(f"the SuperNode {name}, whose key is no longer in use, is unregistered", flush=True)
        for key in sorted(wanted.keys() - known.keys(), key=lambda key: wanted[key].stem):
            name = wanted[key].stem
            nameless = there - {node for node, _ in known.values()}  # the last process was killed before it wrote their keys
            if (admitted := self._admitted(wanted[key], nameless)) is None:
                continue
            known[key] = admitted, name
            write_atomically(self._registered, json.dumps(known, indent=1) + "\n")
            print(f"the SuperNode {name} is registered, as {admitted}", flush=True)

    def _entries(self) -> dict[str, tuple[str, str]]:
        """Returns the number and the name of each SuperNode that was registered, by its public key."""
        if not self._registered.exists():
            return {}
        try:
            return {key: (str(node), str(name)) for key, (node, name) in json.loads(read_text(self._registered)).items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self._registered} is damaged: remove it, restart dpfed-superlink (or programs/superlink), and repeat this "
                "command, which then registers all keys. [flower-registered-damaged]"
            ) from error

    def _admitted(self, key: Path, nameless: set[str]) -> str | None:
        """Registers a key and returns the number of its SuperNode.

        Args:
            key: File of the public key.
            nameless: Numbers of SuperNodes whose keys are unknown.

        Returns:
            The number; ``None``: Flower has registered this key before, and its SuperNode cannot be identified.

        Raises:
            Unavailable: If Flower's command fails for another reason.
        """
        try:
            return str(self._flwr.facts("supernode", "register", str(key), CONNECTION, "--name", key.stem)["node-id"])
        except Unavailable as error:
            if _KNOWN not in str(error):
                raise
        if len(nameless) == 1:
            return nameless.pop()
        print(
            f"the SuperNode {key.stem} is not registered: Flower takes no key twice, and has seen this one before. Let the "
            "site make another key, or restart dpfed-superlink.",
            flush=True,
        )
        return None

    def run(self) -> int:
        """Starts the run, or follows the run in progress, and shows its log.

        Returns:
            The exit code: 0 if the run is complete, otherwise 1.

        Raises:
            Unavailable: If one of Flower's commands fails, or starts no run.
            UserError: If the app folder cannot be made.
        """
        if going := self._going():
            self._flwr.show("log", str(going), CONNECTION, "--stream")
            return _told(next((str(run["status"]) for run in self._runs() if int(run["run-id"]) == going), ""))
        earlier = {run["run-id"] for run in self._runs()}
        with tempfile.TemporaryDirectory(prefix="dpfed-") as drafts:
            config = Path(drafts) / "run.toml"
            config.write_text(tomli_w.dumps({"federation": str(self._folder / "federation"), "run": str(self.run_folder)}))
            app = make_app_folder(Path(drafts) / "app")
            self._flwr.show("run", str(app), CONNECTION, "--stream", "--run-config", str(config))
        started = [run for run in self._runs() if run["run-id"] not in earlier]
        if not started:
            raise Unavailable(
                "`flwr run` ended, but the SuperLink lists no new run: the output of `flwr run` above says why, unless the "
                "SuperLink was restarted. Correct the cause, then repeat this command. [flower-no-run]"
            )
        return _told(str(max(started, key=lambda run: str(run["pending-at"]))["status"]))

    @property
    def run_folder(self) -> Path:
        """Directory of the run: ``runs/NAME`` in the provisioned folder; NAME is the federation's name.

        If an earlier version of dpfed began the run, its directory is ``run``.
        """
        earlier = self._folder / "run"
        return earlier if earlier.is_dir() else self._folder / "runs" / self._name

    def watch(self, stop: threading.Event) -> None:
        """Registers keys that are added to the folder and unregisters keys that are removed, until `stop` is set."""
        before: set[tuple[str, str]] | None = None
        said = ""
        while not stop.wait(_LOOK):
            try:
                # A site's new key is in the same file as its old one, so the content counts, too.
                keys = {(file.name, read_text(file)) for file in visible_files(self._folder / "nodes", ".pub")}
                if keys != before:
                    self.register()
                    before, said = keys, ""
            except (
                UserError,
                OSError,
                UnicodeDecodeError,
            ) as error:  # the folder is being written, or the SuperLink cannot be reached
                if said != (said := str(error)):
                    print(f"the SuperNodes' keys could not be registered; dpfed tries again. {error}", flush=True)

    def _going(self) -> int | None:
        """Returns the id of the run in progress, if there is one."""
        return next((int(run["run-id"]) for run in self._runs() if not str(run["status"]).startswith("finished")), None)

    def _runs(self) -> list[dict[str, Any]]:
        return self._flwr.facts("list", CONNECTION)["runs"]


def _provisioned(folder: Path) -> tuple[str, int]:
    """Returns a federation's name and its SuperLink's port; ``run`` and the usual port if the folder was not provisioned."""
    if not (folder / STATE).exists():
        return "run", LINK_PORT
    known = state_of(folder)
    return known["name"], known.get("link_port", LINK_PORT)


def _told(status: str) -> int:
    """Returns the exit code for a run's last status, and tells the operator if the run is not complete."""
    if status == "finished:completed":
        return 0
    print(f"the run stopped before its end ({status or 'its status is unknown'}): the same command resumes it", flush=True)
    return 1


def operate(folder: Path, port: int | None = None) -> int:
    """Registers the SuperNodes' keys, then starts the run or resumes it, and follows it.

    Args:
        folder: Folder that `dpfed federation provision` made.
        port: Port of the SuperLink, on loopback; default: the port for which the folder was provisioned.

    Returns:
        The exit code: 0 if the run is complete, otherwise 1.

    Raises:
        Unavailable: If no SuperLink listens, or a command of Flower fails.
        UserError: If the folder was not provisioned completely or is damaged, Flower is not installed, or the app folder
            cannot be made.
    """
    operator = Operator(folder, port)
    operator.wait_for_link()
    operator.register()
    threading.Thread(target=operator.watch, args=(threading.Event(),), daemon=True).start()
    return operator.run()
