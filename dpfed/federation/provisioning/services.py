"""The command lines of a site's and a coordinator's programs, and the files that start them: systemd, scripts, nginx.

This module states every command once. Whatever starts a command fills in the folder's path: systemd replaces ``%f``, and a
script finds the folder in which it lies.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from dpfed.errors import UserError

NODE_PORT = 9200  # port of the SuperNode, on loopback
LINK_PORT = 8100  # port of the SuperLink, on loopback
GROUP = "dpfed-node"  # user and group that run SuperNode and app; the worker has another user
PROGRAMS = "programs"  # name of the folder of scripts
FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

_HERE = "127.0.0.1"
_RUNTIME = ["--superexec-auth-secret-file", "%f/keys/runtime.secret"]
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")


def site_files(federation: str, site: str, superlink: str) -> dict[str, str]:
    """Returns the contents of the files that a kit puts into a site's folder, by path in that folder.

    Args:
        federation: Name of the federation.
        site: Name of the site.
        superlink: Address to which the site's SuperNode connects, HOST:PORT.
    """
    host, _, port = superlink.rpartition(":")
    known = {"federation": federation, "site": site, "superlink": superlink, "host": host, "port": port}
    here = {"user": GROUP, "node_port": str(NODE_PORT), "folder": f"{federation}-{site}"}
    units = {
        # The worker: holds the records, reaches no network.
        "worker": ["dpfed", "site", "serve", "%f/site", "--socket", "%f/door/socket", "--group", GROUP],
        # A SuperNode: talks to the coordinator, reaches no record.
        "node": [
            *("dpfed", "site", "supernode", "--root-certificates", "%f/ca.crt", "--superlink", superlink),
            *("--auth-supernode-private-key", "%f/keys/node", "--host", _HERE, "--port", "${DPFED_PORT}"),
            *("--node-config", 'socket="%f/door/socket"', "--isolation", "process", *_RUNTIME),
        ],
        # The resident app: hands messages from a SuperNode to the worker, and back.
        "app": ["dpfed", "site", "app", "--runtime-api-address", f"{_HERE}:${{DPFED_PORT}}", *_RUNTIME],
    }
    files = {
        f"systemd/dpfed-{name}@.service": _shown(f"{name}.service", command=_exec(words), **here)
        for name, words in units.items()
    }
    files |= {
        f"{PROGRAMS}/{name}": _script(words, DPFED_PORT=str(NODE_PORT), FLWR_HOME="$PWD/flower")
        for name, words in units.items()
    }
    return files | {page: _shown(f"site.{page}", **here, **known) for page in ("README.md", "NETWORK.md")}


def coordinator_files(federation: str, folder: str, host: str, port: int, link_port: int = LINK_PORT) -> dict[str, str]:
    """Returns the contents of the files in the coordinator's own folder, by path in that folder.

    Args:
        federation: Name of the federation.
        folder: Absolute path of the folder.
        host: Host name or IP address under which sites reach the coordinator.
        port: Port of the proxy.
        link_port: Port of the SuperLink, on loopback; default: 8100.
    """
    known = {"federation": federation, "folder": folder, "host": host, "port": port, "link_port": link_port}
    inner = "%f/certificates/inner"
    link = [  # the SuperLink, on loopback; the proxy is in front of it
        *("flower-superlink", "--ssl-ca-certfile", f"{inner}/ca.crt", "--ssl-certfile", f"{inner}/server.pem"),
        *("--ssl-keyfile", f"{inner}/server.key", "--enable-supernode-auth", "--host", _HERE, "--port", str(link_port)),
        "--disable-runtime-dependency-installation",
    ]
    run = ["dpfed", "federation", "run", "%f"]
    return {
        f"{PROGRAMS}/superlink": _script(link, FLWR_HOME="$PWD/flower/superlink"),
        f"{PROGRAMS}/run": _script(run),
        "systemd/dpfed-superlink@.service": _shown("superlink.service", command=_exec(link)),
        "systemd/dpfed-run@.service": _shown("run.service", command=_exec(run)),
        "proxy.conf": _shown("proxy.conf", **known),
        "README.md": _shown("coordinator.README.md", **known),
    }


def _shown(template: str, **known: Any) -> str:
    """Returns the text of a template in which names are replaced by the given values."""
    text = resources.files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=True)  # noqa: S701
    return environment.from_string(text).render(flower=FLOWER, **known)


def _exec(words: list[str]) -> str:
    """Returns a command line for ``ExecStart``; its program is in the folder's own environment."""
    program, *rest = words
    return " ".join([f"%f/venv/bin/{program}", *(f"'{word}'" if '"' in word else word for word in rest)])


def _script(words: list[str], **settings: str) -> str:
    """Returns a script that runs a command in the folder, for any supervisor; ``.env`` may name the socket's group."""
    program, *rest = words
    if "--group" in rest:
        at = rest.index("--group")
        rest[at : at + 2] = ["${DPFED_GROUP:+--group}", "${DPFED_GROUP:+$DPFED_GROUP}"]
    quoted = [word if word.startswith(("--", "${DPFED_GROUP")) else '"' + word.replace('"', '\\"') + '"' for word in rest]
    command = " ".join([f'"$PWD/venv/bin/{program}"', *quoted]).replace("%f", "$PWD")
    return _shown("program.sh", command=command, settings=settings)


def require_plain(folder: Path) -> Path:
    """Returns the folder if its path can go into systemd units and commands.

    Raises:
        UserError: If the path has characters other than ASCII letters, digits and ``/ . _ -``.
    """
    if not _PLAIN.fullmatch(str(folder)):
        raise UserError(
            f"{str(folder)!r}: choose a path of digits, / . _ - and the letters A to Z and a to z only. [site-unit-path]"
        )
    return folder
