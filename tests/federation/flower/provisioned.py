"""A provisioned federation on loopback: every program is started by the words of its unit, as systemd would."""

from __future__ import annotations

import asyncio
import grp
import os
import re
import shlex
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfed.federation.demo.processes import Processes
from dpfed.federation.provisioning.site_paths import SitePaths
from tests.patience import at_most

HOST = "127.0.0.2"  # loopback, and not what NO_PROXY names
START = 120.0


def start_unit(members: Processes, name: str, unit: Path, folder: Path, **changes: str) -> None:
    """Starts what a unit starts.

    Args:
        members: gets the process.
        name: of the process.
        unit: the file.
        folder: of the instance.
        changes: words that a test must change, such as a port that is in use.
    """
    text = re.sub(r"^[#;].*$", "", unit.read_text(), flags=re.MULTILINE).replace("%f", str(folder))
    environment: dict[str, str] = {}
    for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE):
        environment |= dict(pair.split("=", 1) for pair in shlex.split(line))
    if (folder / ".env").exists():
        lines = [line for line in (folder / ".env").read_text().splitlines() if "=" in line and not line.startswith("#")]
        environment |= dict(line.split("=", 1) for line in lines)
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = [re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], word) for word in shlex.split(command)]
    environment.pop("PATH", None)  # this test's Python is where the unit's would be
    members.start(name, [changes.get(word, word) for word in words], {**environment, "OMP_NUM_THREADS": "1"})


def start_site(members: Processes, place: SitePaths, *programs: str) -> None:
    """Starts programs of a site: ``worker``, ``node``, ``app``"""
    group = grp.getgrgid(os.getgid()).gr_name
    for program in programs:
        unit = place.path / "systemd" / f"dpfed-{program}@.service"
        start_unit(members, f"{place.kit.site}-{program}", unit, place.path, **{"dpfed-node": group})


class Forwarder:
    """Two proxies on loopback, in a thread: one in front of a SuperLink, as nginx would be, and an institution's own.

    Attributes:
        port: of the first, which ends TLS.
        outgoing: of the second, which an institution's machines must use.
        asked: where it was asked to connect to.
    """

    def __init__(self, folder: Path, link: int, port: int) -> None:
        self._folder, self._link, self.port = folder, link, port
        self.outgoing, self.asked = 0, set[str]()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.reload()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait(at_most(10))

    def reload(self) -> None:
        """What ``nginx -s reload`` does: new connections see the new certificate, open ones stay."""
        certificates = self._folder / "certificates"
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda *_: None)
        self._loop.run_until_complete(asyncio.start_server(self._to_link, HOST, self.port, ssl=self._context))
        outgoing = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.outgoing = outgoing.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _to_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = ssl.create_default_context(cafile=self._folder / "certificates" / "inner" / "ca.crt")
        other = await asyncio.open_connection("127.0.0.1", self._link, ssl=inner, server_hostname="localhost")
        await _both(reader, writer, *other)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, address, _ = head.split(" ", 2)
        self.asked.add(f"{method} {address}")
        host, _, port = address.rpartition(":")
        other = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _both(reader, writer, *other)


async def _both(reader, writer, other_reader, other_writer) -> None:
    async def pump(source, sink):
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))


@contextmanager
def forwarding(folder: Path, link: int, port: int) -> Iterator[Forwarder]:
    """Both proxies, until the block ends."""
    forwarder = Forwarder(folder, link, port)
    try:
        yield forwarder
    finally:
        forwarder.close()
