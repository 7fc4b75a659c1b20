"""A server that tells sites different stories, alone or with sites that collude: it learns planned sums only."""

import contextlib
import itertools

import numpy as np
import pytest

from dpfed.errors import UserError
from dpfed.federation.secure.envelopes import View
from dpfed.federation.secure.masking import OtherView
from dpfed.federation.secure.masks import StepKeys
from tests.federation.secure.protocol import TERMS, Federation, vectors

CASES = [(3, 1, 0), (4, 1, 0), (4, 1, 1), (5, 1, 2), (5, 2, 0), (6, 2, 1)]  # n > 2d + c


def test_one_sites_vector_is_not_opened_by_two_rosters():
    """The server shows site 0 a roster of two, and tells the others that site 0 arrived and site 1 did not."""
    federation, values = Federation(3, 1), vectors(3)
    offers = federation.offers(0)
    federation.mask(0, 0, values[0], {site: offers[site] for site in (0, 1)})
    for site in (1, 2):
        federation.mask(site, 0, values[site], offers)
    rosters = {site: federation.signature(site, 0) for site in range(3)}
    votes = {site: federation.masking[site].confirm(0, {0, 2}) for site in (1, 2)}
    for site in (1, 2):  # the shares that they would give open site 1's round key, and site 0's seed
        with pytest.raises(OtherView, match=r"sites \[0\].*\[mask-roster\]"):
            federation.masking[site].reveal(0, {0, 2}, rosters, votes)


def test_arrivals_that_too_few_sites_confirmed_are_not_acted_on():
    federation = Federation(4, 1)
    server, _ = federation.masked_step(0, vectors(4), arriving=[0, 1, 2])
    server.close()
    one, two = (federation.masking[site] for site in (0, 1))
    few = {site: federation.masking[site].confirm(0, {0, 1, 2}) for site in (0, 1)}
    for votes in ({}, few, few | {2: few[1]}, few | {3: two.signed_roster(0)}):
        with pytest.raises(OtherView, match="at least 3.*mask-few-votes"):
            one.reveal(0, {0, 1, 2}, server.rosters, votes)
    assert one.reveal(0, {0, 1, 2}, server.rosters, few | {2: federation.masking[2].confirm(0, {0, 1, 2})})


@pytest.mark.parametrize("first", ["confirm", "reveal"])
def test_a_site_acts_on_one_set_of_arrivals_in_a_step(first):
    federation = Federation(4, 1)
    server, _ = federation.masked_step(0, vectors(4))
    site = federation.masking[0]
    answer = site.confirm(0, range(4)) if first == "confirm" else site.reveal(0, range(4), server.rosters, {})
    for other in ({0, 1, 2}, {0, 1, 3}):
        with pytest.raises(OtherView, match="mask-second-set"):
            site.confirm(0, other)
        with pytest.raises(OtherView, match="mask-second-set"):
            site.reveal(0, other, server.rosters, {})
    again = site.confirm(0, [3, 2, 1, 0]) if first == "confirm" else site.reveal(0, [3, 2, 1, 0], server.rosters, {})
    assert again == answer


@pytest.mark.parametrize(("arrived", "reason"), [({0, 1}, "mask-sites"), (set(), "mask-sites"), ({0, 1, 2, 9}, r"sites \[9\]")])
def test_arrivals_that_cannot_be_are_refused(arrived, reason):
    federation = Federation(4, 1)
    server, _ = federation.masked_step(0, vectors(4))
    for ask in (federation.masking[0].confirm, lambda *given: federation.masking[0].reveal(*given, server.rosters, {})):
        with pytest.raises(UserError, match=reason):
            ask(0, arrived)
    assert len(federation.masking[0].reveal(0, set(range(4)), server.rosters, {})) == 4 * 32


def test_a_site_outside_the_roster_cannot_have_arrived():
    federation = Federation(4, 1)
    federation.masked_step(0, vectors(4), roster=[0, 1, 2])
    with pytest.raises(OtherView, match="mask-strangers"):
        federation.masking[0].confirm(0, {0, 1, 2, 3})


def test_signatures_are_for_one_roster_set_step_and_run():
    public = {0: b"a" * 32, 1: b"b" * 32}
    views = [
        View(StepKeys(TERMS, 0), public),
        View(StepKeys(TERMS, 1), public),
        View(StepKeys(b"other terms", 0), public),
        View(StepKeys(TERMS, 0), public | {2: b"c" * 32}),
        View(StepKeys(TERMS, 0), public | {1: b"c" * 32}),
        View(StepKeys(TERMS, 0), {0: b"b" * 32, 1: b"a" * 32}),
    ]
    said = [view.roster() for view in views] + [
        view.arrival_log(frozenset(arrived)) for view in views for arrived in ({0}, {0, 1}, {1})
    ]
    assert len(set(said)) == len(said)


# ---- any story


class Liar:
    """A server that draws its lies, with colluding sites; it collects all that honest sites then say.

    The first sites collude: they sign anything, and give the server every share that they hold.
    """

    def __init__(self, sites: int, drops: int, colluders: int, seed: int) -> None:
        self.federation, self.rng = Federation(sites, drops, colluders), np.random.default_rng(seed)
        self.sites, self.needed, self.colluding = sites, sites - drops, set(range(colluders))
        self.honest = set(range(sites)) - self.colluding

    def drawn(self, sites) -> frozenset[int]:
        """A set that is large enough; mostly not larger."""
        size = self.needed if self.rng.random() < 0.75 else self.rng.integers(self.needed, len(sites) + 1)
        return frozenset(self.rng.choice(sorted(sites), size, replace=False).tolist())

    def arrival_log(self, stories: list[frozenset[int]]) -> list[frozenset[int]]:
        """What sites are told about who arrived: one set for most of them, or all that lack most of a few victims."""
        everyone, drops = frozenset(range(self.sites)), self.sites - self.needed
        if self.rng.random() < 0.5:
            victims = self.rng.choice(self.sites, drops + 1, replace=False).tolist()
            return [everyone - set(gone) for gone in itertools.combinations(victims, drops)]
        return [self.drawn(everyone)] * 6 + [self.drawn(stories[1]), *stories]

    def step(self, step: int) -> tuple[dict[int, frozenset[int]], dict[int, set[int]], dict[int, set[int]]]:
        """One step: each honest site's roster, and for each site who gave away a share of its seed, and of its round key."""
        everyone = range(self.sites)
        offers, masking = self.federation.offers(step), self.federation.masking
        keys = {site: offer.public[:32] for site, offer in offers.items()}
        stories, rosters = [frozenset(everyone), self.drawn(everyone)], {}
        for site in self.honest:
            rosters[site] = stories[self.rng.integers(2) if site in stories[1] else 0]
            self.federation.mask(site, step, vectors(self.sites)[0], {other: offers[other] for other in rosters[site]})
        views = {roster: View(StepKeys(TERMS, step), {site: keys[site] for site in roster}) for roster in stories}
        arrival_log, voted, told = self.arrival_log(stories), {}, {}
        for site in rosters:
            told[site] = arrival_log[self.rng.integers(len(arrival_log))]
            with contextlib.suppress(OtherView):
                if self.rng.integers(5):
                    voted[site, rosters[site], told[site]] = masking[site].confirm(step, told[site])
        seeds, round_keys = ({site: set(self.colluding) for site in everyone} for _ in range(2))
        for site, roster in rosters.items():
            signed = {other: masking[other].signed_roster(step) for other in rosters if rosters[other] == roster}
            signed |= {other: self.federation.identities[other].sign(views[roster].roster()) for other in self.colluding}
            for arrived in (told[site], *arrival_log):
                votes = {other: vote for (other, *said), vote in voted.items() if said == [roster, arrived]}
                statement = views[roster].arrival_log(arrived)
                votes |= {other: self.federation.identities[other].sign(statement) for other in self.colluding}
                try:
                    masking[site].reveal(step, arrived, signed, votes)
                except OtherView:
                    continue
                for member in roster:
                    (seeds if member in arrived else round_keys)[member].add(site)
        return rosters, seeds, round_keys

    def learns(self, rosters, seeds, round_keys) -> int | None:
        """How many honest sites are in the smallest sum that the server can compute; ``None``: it learns nothing."""
        known = {site for site, givers in round_keys.items() if len(givers) >= self.needed} | self.colluding
        masks = []  # what stands in the way of each honest site's vector: unknown streams and their signs
        for site, roster in sorted(rosters.items()):
            mask = {} if len(seeds[site]) >= self.needed else {("self", site): 1}
            for other in roster - {site}:
                if not {site, other} & known:
                    mask["pair", min(site, other), max(site, other)] = 1 if site < other else -1
            masks.append(mask)
        streams = sorted({stream for mask in masks for stream in mask}, key=str)
        columns = np.array([[mask.get(stream, 0) for stream in streams] for mask in masks], float).reshape(
            len(masks), len(streams)
        )
        for size in range(1, len(masks) + 1):
            for chosen in itertools.combinations(range(len(masks)), size):
                if np.linalg.matrix_rank(columns[list(chosen)]) < size:
                    return size  # some combination of these vectors is free of every unknown stream
        return None


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_story_narrows_the_sum_below_the_planned_honest_sites(case):
    sites, drops, colluders = case
    liar, learnt = Liar(*case, seed=sum(case)), []
    for step in range(60):
        learnt.append(liar.learns(*liar.step(step)))
    assert all(size is None or size >= sites - drops - colluders for size in learnt), learnt
    assert any(learnt), "the server never learnt anything: its stories are too wild to test anything"
