"""What a step of secure sums costs at many numbers of sites.

    python -m benchmarks.secure_scale          10, 50, 100 and 1,000 sites; writes results/secure-scale.json, in some minutes
    python -m benchmarks.secure_scale 100      one number of sites; writes nothing

The coordinator's work is all there: it makes every question, reads and checks every answer, recovers every secret and takes
away every mask, and its total is compared with the sum. Gradients and the network are missing. Sites are equal, so two of
them are carried out and timed. The benchmark makes the messages of the others: it knows their secrets, and leaves out the
masks that cancel. Of n sites three tenths may drop out; none, a tenth or three tenths of them leave behind their offers.
Times are of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

import os
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.record import write_result
from dpfed.federation.coordinator.secure_sum import SecureSum
from dpfed.federation.protocol.answers import Answer, Offer, Sum, Vote, read
from dpfed.federation.protocol.identity import Identity
from dpfed.federation.protocol.messages import sign
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.secure.agreement import View
from dpfed.federation.secure.envelopes import Envelopes, offer_lengths
from dpfed.federation.secure.masking import Masking
from dpfed.federation.secure.masks import StepKeys, add_mask, pair_sign, public_bytes
from dpfed.federation.secure.parties import Parties
from dpfed.federation.secure.shares import split

NUMBERS = 100_000  # P, the length of a sum
SITES = (10, 50, 100, 1000)
_FINGERPRINT = "0" * 32
_TIMED_SITES = 2
_DEGREE = 4  # of the others' polynomials: what the server recovers them with does not depend on it


class Stopwatch:
    """Seconds of the processor, added up by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Adds what happens within."""
        started = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - started


class Scene:
    """All sites of a step, whose secrets this process knows.

    Args:
        parties: how many.
        leave: sites that leave behind their offers, the last ones.
    """

    def __init__(self, parties: Parties, leave: int) -> None:
        self.parties, n = parties, parties.sites
        self.keys, self.arrived = StepKeys(_FINGERPRINT.encode(), 0), range(n - leave)
        self.identities = [Identity.fresh() for _ in range(n)]
        self.coordinator = Identity.fresh()
        self.round_keys = [X25519PrivateKey.generate() for _ in range(n)]
        self.public = [public_bytes(key) for key in self.round_keys]
        self.seeds = [os.urandom(32) for _ in range(n)]
        revealed = [
            self.seeds[site] if site in self.arrived else self.round_keys[site].private_bytes_raw() for site in range(n)
        ]
        self.shares = split(revealed, min(_DEGREE, parties.needed), n) if parties.drops else []
        self.view = View(self.keys, dict(enumerate(self.public)))
        trust = SimpleNamespace(parties=parties)
        self.terms = cast(Terms, SimpleNamespace(trust_model=trust, sites=self.identities, fingerprint=_FINGERPRINT))

    def said(self, site: int, kind: str, vector: bytes = b"", **fields: Any) -> Any:
        """A signed answer of a site."""
        return sign(self.identities[site], _FINGERPRINT, kind, vector, site=site, step=0, **fields)

    def offer(self, site: int) -> dict[str, Any]:
        """What a site offers; only its own knows what is in the envelopes."""
        _, length = offer_lengths(self.parties)
        check = self.keys.self_check(self.seeds[site], site) if self.parties.drops else b""
        rest = length - len(self.public[site])
        envelopes = b"".join(self.public[site] + os.urandom(rest) for _ in range(self.parties.sites - 1))
        return {"step": 0, "public": text(self.public[site] + check), "envelopes": text(envelopes)}

    def masked(self, site: int, values: np.ndarray) -> bytes:
        """A site's masked vector, without the masks that cancel."""
        masked = values.copy()
        if self.parties.drops:
            add_mask(masked, self.keys.self_mask(self.seeds[site], site), +1)
        for other in self.parties.partners(site):
            if other not in self.arrived:
                add_mask(
                    masked, self.keys.pair_mask(self.round_keys[site], self.public[other], site, other), pair_sign(site, other)
                )
        return masked.tobytes()


def text(content: bytes) -> str:
    """Bytes as headers hold them."""
    return b64encode(content).decode()


def server(scene: Scene) -> dict[str, float]:
    """Seconds of a step at the coordinator, by what it does."""
    watch, parties, rng = Stopwatch(), scene.parties, np.random.default_rng(0)
    offers = {site: scene.offer(site) for site in range(parties.sites)}

    def received(packet: Any, kind: type[Answer], site: int) -> Any:
        return read(packet, kind, site, scene.identities[site].signing_key, _FINGERPRINT)

    with watch.timing("questions"):
        roster = {site: Offer.model_validate(offer) for site, offer in offers.items()}
        step = SecureSum(scene.terms, 0, roster, NUMBERS)
        for site in range(parties.sites):
            sign(scene.coordinator, _FINGERPRINT, "step", digest="0" * 64, step=0, **step.offers_for(site))
    expected = np.zeros(NUMBERS, np.uint32)
    for site in scene.arrived:
        values = rng.integers(0, 2**32, NUMBERS, np.uint32)
        expected += values
        signed = {"roster": text(scene.identities[site].sign(scene.view.roster()))} if parties.drops else {}
        packet = scene.said(site, "sum", scene.masked(site, values), offer=offers[site], **signed)
        with watch.timing("answers"):
            step.add(site, received(packet, Sum, site), packet.vector)

    def ask(kind: str, expected_kind: type[Answer], fields: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        with watch.timing("agreement"):
            sign(scene.coordinator, _FINGERPRINT, kind, step=0, **fields)
        for site in scene.arrived:
            if expected_kind is Vote:
                vote = scene.identities[site].sign(scene.view.arrivals(frozenset(scene.arrived)))
                packet = scene.said(site, "vote", vote=text(vote))
            else:
                packet = scene.said(site, "shares", shares=text(b"".join(shares[site] for shares in scene.shares)))
            with watch.timing("agreement"):
                answer = received(packet, expected_kind, site)
            yield site, answer

    started = time.process_time()
    total, reason = step.total(ask)
    watch.seconds["unmasking"] = time.process_time() - started - watch.seconds.get("agreement", 0.0)
    if total is None or not np.array_equal(total, expected):
        raise RuntimeError(f"the total is wrong: {reason}")
    return watch.seconds | {"total": sum(watch.seconds.values())}


def one_site(scene: Scene) -> dict[str, float]:
    """Seconds of a step at a site: its own work on masks, without gradients."""
    watch, parties, length = Stopwatch(), scene.parties, offer_lengths(scene.parties)[1]
    values = np.zeros(NUMBERS, np.uint32)

    for me in range(_TIMED_SITES):
        masking = Masking(me, scene.identities[me], scene.identities, parties, _FINGERPRINT.encode())
        with watch.timing("first offer"):  # agrees with every other site for the whole run
            masking.offer(0)
        with watch.timing("offer"):
            masking.offer(1)
        keys = StepKeys(_FINGERPRINT.encode(), 1)
        secret = os.urandom(64 if parties.drops else 0)
        envelopes = {
            other: Envelopes(other, scene.identities[other], scene.identities, length).seal(
                keys, me, scene.public[other], secret
            )
            for other in range(parties.sites)
            if other != me
        }
        with watch.timing("mask"):
            masking.mask(masking.open(1, envelopes), values)
        if parties.drops:
            view = masking._masked.view if masking._masked else scene.view
            rosters = {site: scene.identities[site].sign(view.roster()) for site in scene.arrived}
            arrived = frozenset(scene.arrived)
            votes = {site: scene.identities[site].sign(view.arrivals(arrived)) for site in scene.arrived}
            with watch.timing("reveal"):
                masking.confirm(1, arrived)
                masking.reveal(1, arrived, rosters, votes)
    return {name: seconds / _TIMED_SITES for name, seconds in watch.seconds.items()}


def measure(sites: int) -> dict[str, Any]:
    """Everything at one number of sites."""
    found: dict[str, Any] = {}
    drops = 3 * sites // 10
    for name, parties, leave in (
        ("no site may leave", Parties(sites, 0, 1), 0),
        ("none leaves", Parties(sites, drops, 1), 0),
        ("a tenth leaves", Parties(sites, drops, 1), sites // 10),
        ("three tenths leave", Parties(sites, drops, 1), drops),
    ):
        scene = Scene(parties, leave)
        found[name] = {"drops": parties.drops, "leave": leave, "partners": parties.links}
        found[name] |= {"server": server(scene), "site": one_site(scene)}
        print(f"{sites:>6} sites, {name:<18}", {part: f"{s:.3f}" for part, s in found[name]["server"].items()}, flush=True)
        print(f"{'a site':>33}", {part: f"{s:.3f}" for part, s in found[name]["site"].items()}, flush=True)
    return found


def main() -> None:
    """Measures, and writes the result if it is the whole of it."""
    numbers = tuple(map(int, sys.argv[1:])) or SITES
    measured = {str(sites): measure(sites) for sites in numbers}
    if numbers == SITES:
        write_result("secure-scale", {"numbers": NUMBERS, "sites": measured}, [])


if __name__ == "__main__":
    main()
