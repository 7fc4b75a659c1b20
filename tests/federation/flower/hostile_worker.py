"""A site worker that sends a bomb or a forgery in each step from the second on: FOLDER, DOOR, and another site's folder."""

import json
import sys
import threading
from pathlib import Path

from benchmarks.hostile_site import HostileSite, spoilt
from dpfed.federation.site.folder import SiteFolder
from dpfed.federation.site.local_socket import serve
from dpfed.protocol.messages import _DOMAIN, Packet, sign


class Bombs(HostileSite):
    """A hostile site with more deeds; each is named in ``FOLDER/faults.jsonl`` when it is done."""

    def __init__(self, folder, stranger):
        self._stranger = stranger
        super().__init__(folder, {})
        self._deeds |= {
            "huge vector": lambda reply: self._signed(reply, vector=bytes(300 << 20)),
            "deep nesting": lambda reply: self._raw(b'{"kind":"sum","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
            "deep nesting from the first byte": lambda reply: self._raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
            "long header": lambda reply: self._raw(b'{"kind":"sum","x":"' + b"x" * 3_900_000 + b'"}'),
            "endless number": lambda reply: self._raw(reply.header.replace(b'"step": ', b'"step": 1' + b"0" * 5_000)),
            "garbage": lambda reply: Packet(b"\xff" * 5_000, b"\xff" * 64, b"\xff" * 1_000),
            "nothing": lambda reply: Packet(b"", b""),
            "signed by another site": lambda reply: self._signed(reply, self._stranger),
            "in another site's name": lambda reply: self._signed(reply, site=1),
            "for other terms": lambda reply: self._signed(reply, terms="0" * 32),
            "infinite": lambda reply: self._forged(reply, lambda values: spoilt(values, float("inf"))),
        }
        self._faults = [(1, deed) for deed in self._deeds if deed not in ("", "slow", "killed in mid-step")]

    def _signed(self, reply, identity=None, vector=None, **changes):
        fields = json.loads(reply.header) | changes
        content = bytes(reply.vector) if vector is None else vector
        named = {name: fields[name] for name in ("site", "step")}
        return sign(identity or self._identity, fields["terms"], fields["kind"], content, **named)

    def _raw(self, header):
        return Packet(header, self._identity.sign(_DOMAIN + header))


if __name__ == "__main__":
    place, socket, other = map(Path, sys.argv[1:])
    site = Bombs(SiteFolder.open(place), SiteFolder.open(other).identity())
    print("ready", flush=True)
    serve(socket, site.answer, threading.Event())
