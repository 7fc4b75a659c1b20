"""A federation under test: the real protocol between sites in this process, for a mechanism of canaries."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Sequence
from pathlib import Path

from dpfed.audit.canaries import CanaryModel
from dpfed.federation.coordinator.journal import Journal
from dpfed.federation.coordinator.rounds import Federation
from dpfed.federation.protocol.cards import SiteCard
from dpfed.federation.protocol.identity import Identity
from dpfed.federation.protocol.terms import Terms
from dpfed.federation.protocol.trust import Mode
from dpfed.federation.simulation import InProcessChannel
from dpfed.federation.site.worker import SiteWorker
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.randomness import Randomness
from dpfed.runs.assembly import Components, Share

_IDENTITIES = Randomness.from_seed(0)  # nobody else listens


def agreed(parts: Components, trust: Mode, units: Sequence[int]) -> Terms:
    """Terms between sites that hold so many units each; nobody drops out or colludes, so all noise is in the sum.

    Args:
        parts: of the mechanism.
        trust: who adds the noise.
        units: records, or units where they are protected, of each site.
    """
    coordinator, *parties = _identities(len(units))
    by_unit = parts.plan.promise.unit == "user"
    cards = [
        SiteCard(
            name=f"site-{number}",
            records=count,
            units=count if by_unit else None,
            unit_name="unit" if by_unit else None,
            signing_key=party.signing_key,
            exchange_key=party.exchange_key,
        )
        for number, (party, count) in enumerate(zip(parties, units, strict=True))
    ]
    return Terms.agree(parts.config, cards, coordinator.signing_key, trust=trust, colluders=0)


def connected(
    parts: Components,
    model: CanaryModel,
    shares: Sequence[Share],
    randomness: Randomness,
    noise: Randomness,
    ledger: Ledger,
    folder: Path,
) -> tuple[Federation, list[CanaryModel]]:
    """The coordinator's transport, and the sites' models.

    Args:
        parts: of the mechanism, with its terms.
        model: the coordinator's, of which every site gets a copy.
        shares: of the sites.
        randomness: the sites', of their draws.
        noise: what the sites' shares of the noise come from.
        ledger: the coordinator's.
        folder: for the sites' ledgers.
    """
    terms = parts.terms
    assert terms is not None  # `UnderTest` makes them for a federation
    coordinator, *parties = _identities(len(shares))
    sites, models = {}, []
    for share, party in zip(shares, parties, strict=True):
        replica = copy.deepcopy(model)
        own = Ledger.create(folder / f"{secrets.token_hex(8)}.jsonl", parts.plan)
        worker = parts.worker(randomness, None, replica, share=share)
        secret = Randomness(noise.key("shares", share.owner))
        sites[f"site-{share.owner}"] = SiteWorker(terms, party, worker, replica, own, secret, _ignore)
        models.append(replica)
    journal = Journal(folder / f"{secrets.token_hex(8)}.jsonl")
    return Federation(terms, coordinator, InProcessChannel(sites), model, journal, ledger, _ignore), models


def _identities(sites: int) -> list[Identity]:
    return [Identity(_IDENTITIES.key("identity", party)) for party in range(sites + 1)]


def _ignore(text: str) -> None:
    """What a site would say to its operator: nobody is there."""
