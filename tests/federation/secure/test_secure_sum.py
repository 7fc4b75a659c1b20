"""Secure sums: exact for every pattern of drop-outs, opaque before that, and refusing whatever would open a single site."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from Crypto.Cipher import ChaCha20
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.errors import UserError
from dpfed.federation.protocol.fixed_point import Grid
from dpfed.federation.secure.masking import Masking
from dpfed.federation.secure.masks import StepKeys, add_mask, public_bytes
from dpfed.federation.secure.shares import combine, split, threshold
from dpfed.federation.secure.unmasking import Unmasking

TERMS = b"fingerprint of the terms"
SIZE = 50
RNG = np.random.default_rng(0)


class Federation:
    """n sites and a server that relays between them, without a network."""

    def __init__(self, sites: int, tolerated: int):
        self.identities = [X25519PrivateKey.generate() for _ in range(sites)]
        self.public = {site: key.public_key().public_bytes_raw() for site, key in enumerate(self.identities)}
        self.sites, self.tolerated = sites, tolerated
        self.masking = [self.site(number) for number in range(sites)]

    def site(self, number: int, context: bytes = TERMS, **changed) -> Masking:
        peers = {other: key for other, key in self.public.items() if other != number}
        return Masking(number, self.identities[number], changed.get("peers", peers), self.tolerated, context)

    def offers(self, step: int, roster=None) -> dict:
        return {site: self.masking[site].offer(step) for site in (range(self.sites) if roster is None else roster)}

    def mask(self, site: int, step: int, values: np.ndarray, offers: dict) -> np.ndarray:
        mine = {sender: offer.ciphertexts[site] for sender, offer in offers.items() if sender != site}
        return self.masking[site].mask(step, values, mine)

    def server(self, step: int, offers: dict, size: int = SIZE) -> Unmasking:
        public = {site: offer.public for site, offer in offers.items()}
        return Unmasking(self.sites, self.tolerated, TERMS, step, public, size)

    def masked_step(self, step: int, values: np.ndarray, roster=None, arriving=None) -> tuple[Unmasking, dict]:
        """Up to the end of the arrivals: the server, and every masked vector."""
        offers = self.offers(step, roster)
        masked = {site: self.mask(site, step, values[site], offers) for site in offers}
        server = self.server(step, offers, values.shape[1])
        for site in masked if arriving is None else arriving:
            server.add(site, masked[site])
        return server, masked

    def reveals(self, step: int, arrived, givers=None) -> dict:
        return {site: self.masking[site].reveal(step, arrived) for site in (arrived if givers is None else givers)}


def vectors(sites: int, size: int = SIZE) -> np.ndarray:
    return RNG.integers(0, 2**32, size=(sites, size), dtype=np.uint32)


def plain_sum(values: np.ndarray, sites) -> list[int]:
    """The oracle: Python's integers."""
    return [sum(int(values[site, at]) for site in sites) % 2**32 for at in range(values.shape[1])]


# What a site may do in a step, from the worst to the best.
BEHAVIOURS = ("no offer", "no mask", "late", "no reveal", "stays")


def run_step(federation: Federation, step: int, behaviour: tuple[str, ...], values: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """A whole step; returns the total and who is in it."""
    offers = federation.offers(step, [site for site, does in enumerate(behaviour) if does != "no offer"])
    masked = {site: federation.mask(site, step, values[site], offers) for site in offers if behaviour[site] != "no mask"}
    server = federation.server(step, offers)
    for site, vector in masked.items():
        if behaviour[site] != "late":
            server.add(site, vector)
    arrived = server.close()
    total = server.total(federation.reveals(step, arrived, [site for site in arrived if behaviour[site] == "stays"]))
    return total, sorted(arrived)


def patterns(sites: int, faults: int) -> list[tuple[str, ...]]:
    every = itertools.product(BEHAVIOURS, repeat=sites)
    return [pattern for pattern in every if sum(does != "stays" for does in pattern) == faults]


@pytest.mark.parametrize(("sites", "tolerated"), [(2, 0), (3, 1), (4, 1), (5, 2)])
def test_the_sum_is_exact_for_every_pattern_of_tolerated_faults(sites, tolerated):
    federation, step = Federation(sites, tolerated), itertools.count()
    for faults in range(tolerated + 1):
        chosen = patterns(sites, faults)
        for behaviour in chosen[:: max(1, len(chosen) // 40)]:
            values = vectors(sites)
            total, arrived = run_step(federation, next(step), behaviour, values)
            assert arrived == [site for site, does in enumerate(behaviour) if does in ("stays", "no reveal")]
            assert total.tolist() == plain_sum(values, arrived), behaviour


@pytest.mark.parametrize(("sites", "tolerated"), [(2, 0), (3, 1), (4, 1)])
def test_one_fault_more_gives_no_sum(sites, tolerated):
    federation, step = Federation(sites, tolerated), itertools.count()
    for behaviour in patterns(sites, tolerated + 1):
        with pytest.raises(UserError, match="needed"):
            run_step(federation, next(step), behaviour, vectors(sites))


def test_late_vectors_are_not_added_but_their_sites_may_reveal():
    federation, values = Federation(5, 2), vectors(5)
    server, masked = federation.masked_step(0, values, arriving=[0, 2, 4])
    arrived = server.close()
    with pytest.raises(UserError, match="closed"):
        server.add(1, masked[1])
    assert server.total(federation.reveals(0, arrived, [1, 3, 4])).tolist() == plain_sum(values, [0, 2, 4])


def test_noised_vectors_go_through_the_grid_and_back():
    federation, grid = Federation(3, 1), Grid.for_sums(bound=8, noise_std=2.0, share_std=1.0)
    parts = RNG.normal(scale=2, size=(3, SIZE)).astype(np.float32)
    server, _ = federation.masked_step(0, np.array([grid.encode(part) for part in parts]), arriving=[0, 2])
    decoded = grid.decode(server.total(federation.reveals(0, server.close())))
    assert np.abs(decoded - (parts[0].astype(np.float64) + parts[2])).max() < 2 * grid.spacing + 1e-6


@pytest.mark.parametrize("value", [0, 1, 2**31, "ramp"])
@pytest.mark.parametrize("site", [0, 1])
def test_a_masked_vector_is_uniform_whatever_it_hides(value, site):
    size = 400_000
    values = np.zeros((2, size), np.uint32)
    values[site] = np.arange(size) if value == "ramp" else value
    federation = Federation(2, 0)
    server, masked = federation.masked_step(0, values)
    for words in (masked[site], masked[site] - values[site]):
        for piece in (words >> 24, words & 0xFF, words[::2] + words[1::2] & 0xFF):
            assert scipy.stats.chisquare(np.bincount(piece, minlength=256)).pvalue > 1e-7
    assert abs(np.corrcoef(masked[0].astype(float), masked[1].astype(float))[0, 1]) < 0.01
    assert server.total(federation.reveals(0, server.close())).tolist() == values[site].tolist()


def test_the_same_vector_is_masked_afresh_in_every_step():
    federation, values = Federation(3, 1), vectors(3)
    masked = [federation.masked_step(step, values)[1][0] for step in range(3)]
    for one, other in itertools.combinations(masked, 2):
        assert (one != other).mean() > 0.9


def test_a_mask_is_the_key_stream_that_another_library_computes():
    values, key = vectors(1, 3 * 2**16 + 1)[0], bytes(range(32))  # several chunks and a rest of one
    stream = np.frombuffer(ChaCha20.new(key=key, nonce=bytes(8)).encrypt(bytes(4 * len(values))), "<u4")
    masked = values.copy()
    add_mask(masked, key, +1)
    assert np.array_equal(masked, values + stream)
    add_mask(masked, key, -1)
    assert np.array_equal(masked, values)


def test_every_run_step_purpose_direction_and_pair_has_a_key_of_its_own():
    mine, other, seed = X25519PrivateKey.generate(), X25519PrivateKey.generate(), bytes(32)
    theirs, ours = other.public_key().public_bytes_raw(), mine.public_key().public_bytes_raw()
    derived = []
    for keys in (StepKeys(context, step) for context in (b"one run", b"another") for step in (0, 1)):
        derived += [keys.envelope(mine, theirs, *way) for way in ((0, 1), (1, 0), (0, 2))]
        derived += [keys.self_mask(seed, 0), keys.self_mask(seed, 1), keys.self_check(seed, 0), keys.self_check(seed, 1)]
        derived += [keys.pair_mask(mine, theirs, 0, 1), keys.pair_mask(mine, theirs, 0, 2)]
        assert keys.pair_mask(mine, theirs, 0, 1) == keys.pair_mask(other, ours, 1, 0)
        assert keys.envelope(mine, theirs, 0, 1) == keys.envelope(other, ours, 0, 1)
    assert len(set(derived)) == len(derived)


def test_the_callers_vector_stays_as_it_is():
    federation, values = Federation(2, 0), vectors(2)
    before = values.copy()
    federation.masked_step(0, values)
    assert np.array_equal(values, before)


# ---- too few shares, wrong shares


def test_a_share_less_than_the_threshold_tells_nothing():
    secret = bytes(range(32))
    shares = dict(enumerate(split(secret, 3, 5)))
    for chosen in itertools.combinations(shares, 3):
        assert combine({site: shares[site] for site in chosen}) == secret
    for chosen in itertools.combinations(shares, 2):
        two = {site: shares[site] for site in chosen}
        assert combine(two) != secret
        # every secret is possible: whatever third share one imagines, another secret comes out
        third = next(site for site in shares if site not in two)
        assert len({combine(two | {third: bytes([guess]) * 32}) for guess in range(8)}) == 8


def test_the_dealt_shares_open_a_secret_at_the_threshold_and_not_below():
    federation = Federation(4, 1)
    offers = federation.offers(0)
    for site in range(4):
        federation.mask(site, 0, vectors(4)[site], offers)
    held = [site._masked.shares[2] for site in federation.masking]
    for givers in [*itertools.combinations(range(4), 2), *itertools.combinations(range(4), 3)]:
        seed, key = combine({at: held[at].of_seed for at in givers}), combine({at: held[at].of_key for at in givers})
        assert (StepKeys(TERMS, 0).self_check(seed, 2) == offers[2].public[32:]) == (len(givers) == 3)
        assert (public_bytes(X25519PrivateKey.from_private_bytes(key)) == offers[2].public[:32]) == (len(givers) == 3)


@pytest.mark.parametrize("arriving", [[0, 1, 2, 3, 4], [0, 2, 3]])
def test_too_few_reveals_leave_the_sum_masked_and_more_can_be_added(arriving):
    federation, values = Federation(5, 2), vectors(5)
    server, _ = federation.masked_step(0, values, arriving=arriving)
    reveals = federation.reveals(0, server.close())
    few = dict(list(reveals.items())[:2])
    with pytest.raises(UserError, match="sites 0, .* revealed a share for site 0, 3 are needed"):
        server.total(few)
    for _ in range(2):
        assert server.total(reveals).tolist() == plain_sum(values, arriving)


def test_without_the_missing_sites_key_the_remainder_is_uniform():
    """What the server can compute when it has all seeds but lacks the shares of the round key of the site that dropped out."""
    federation, values = Federation(3, 1), np.zeros((3, 200_000), np.uint32)
    offers = federation.offers(0)
    masked = {site: federation.mask(site, 0, values[site], offers) for site in (0, 1)}
    for site, vector in masked.items():
        add_mask(vector, _seed_key(federation, site), -1)
    assert scipy.stats.chisquare(np.bincount((masked[0] + masked[1]) >> 24, minlength=256)).pvalue > 1e-7


def _seed_key(federation: Federation, site: int) -> bytes:
    holders = [federation.masking[other]._masked.shares[site].of_seed for other in (0, 1)]
    return StepKeys(TERMS, 0).self_mask(combine(dict(enumerate(holders))), site)


@pytest.mark.parametrize("of", [0, 1], ids=["of a seed", "of a round key"])
def test_one_wrong_share_is_noticed_and_the_sites_are_named(of):
    federation = Federation(3, 1)
    server, _ = federation.masked_step(0, vectors(3), arriving=[0, 2])
    reveals = federation.reveals(0, server.close())
    for at in (0, 15, 16, 31):
        wrong = bytearray(reveals[2][of])
        wrong[at] ^= 1
        with pytest.raises(UserError, match=f"sites 0, 2 do not give the secret of site {of}"):
            server.total(reveals | {2: reveals[2] | {of: bytes(wrong)}})


def test_a_share_of_another_length_counts_as_none():
    federation = Federation(3, 1)
    server, _ = federation.masked_step(0, vectors(3))
    reveals = federation.reveals(0, server.close(), [0, 1])
    with pytest.raises(UserError, match="site 0 revealed a share for site 2, 2 are needed"):
        server.total(reveals | {1: reveals[1] | {2: b"short"}})


# ---- what sites refuse


def test_an_offer_that_was_changed_is_refused_and_nothing_is_masked():
    federation, values = Federation(3, 1), vectors(3)
    offers = federation.offers(0)
    right = {sender: offers[sender].ciphertexts[0] for sender in (1, 2)}
    for at in range(0, len(right[1]), 7):
        wrong = bytearray(right[1])
        wrong[at] ^= 1
        with pytest.raises(UserError, match="the offer of site 1 was changed"):
            federation.masking[0].mask(0, values[0], right | {1: bytes(wrong)})
    for wrong in (b"", right[1][:11], right[1][:-1], right[1] + b"\0"):
        with pytest.raises(UserError, match="the offer of site 1 was changed"):
            federation.masking[0].mask(0, values[0], right | {1: wrong})
    federation.masking[0].mask(0, values[0], right)  # the right ones can still be used


def test_offers_of_others_steps_and_runs_are_refused():
    federation, values = Federation(3, 1), vectors(3)
    old = federation.offers(0)
    offers = federation.offers(1)
    foreign = federation.site(1, context=b"other terms").offer(1)
    stranger = Masking(1, X25519PrivateKey.generate(), {0: federation.public[0], 2: federation.public[2]}, 1, TERMS).offer(1)
    substitutes = {
        "replayed": old[1].ciphertexts[0],
        "of another run": foreign.ciphertexts[0],
        "under another identity": stranger.ciphertexts[0],
        "of another sender": offers[2].ciphertexts[0],
        "for another receiver": offers[1].ciphertexts[2],
        "my own": offers[0].ciphertexts[1],
    }
    for what, substitute in substitutes.items():
        with pytest.raises(UserError, match="the offer of site 1 was changed"):
            federation.masking[0].mask(1, values[0], {1: substitute, 2: offers[2].ciphertexts[0]})
            pytest.fail(what)
    with pytest.raises(UserError, match="site 7, which is not another site"):
        federation.masking[0].mask(1, values[0], {7: offers[1].ciphertexts[0], 2: offers[2].ciphertexts[0]})
    with pytest.raises(UserError, match="site 0, which is not another site"):
        federation.masking[0].mask(1, values[0], {0: offers[0].ciphertexts[1], 2: offers[2].ciphertexts[0]})


def test_a_public_key_that_the_server_swaps_is_noticed():
    federation = Federation(3, 1)
    offers = federation.offers(0)
    masked = {site: federation.mask(site, 0, vectors(3)[site], offers) for site in (0, 1)}
    public = {site: offer.public for site, offer in offers.items()}
    server = Unmasking(3, 1, TERMS, 0, public | {2: federation.public[2] + public[2][32:]}, SIZE)
    for site, vector in masked.items():
        server.add(site, vector)
    with pytest.raises(UserError, match="do not give the secret of site 2"):
        server.total(federation.reveals(0, server.close()))


def test_a_round_key_that_gives_everybody_the_same_secret_is_refused(monkeypatch):
    federation = Federation(3, 1)
    monkeypatch.setattr("dpfed.federation.secure.masking.public_bytes", lambda key: bytes(32))
    hostile = federation.masking[1].offer(0)
    monkeypatch.undo()
    mine = {1: hostile.ciphertexts[0]}
    federation.masking[0].offer(0)
    with pytest.raises(UserError, match="not a valid X25519 key"):
        federation.masking[0].mask(0, vectors(1)[0], mine)


def test_a_roster_below_the_threshold_is_refused():
    federation = Federation(4, 1)
    offers = federation.offers(0)
    with pytest.raises(UserError, match="offers of 2 sites, at least 3"):
        federation.masking[0].mask(0, vectors(1)[0], {1: offers[1].ciphertexts[0]})
    with pytest.raises(UserError, match="at least 3"):
        federation.server(0, {site: offers[site] for site in (0, 1)})


def test_a_step_is_masked_once():
    federation, values = Federation(3, 1), vectors(3)
    federation.masked_step(4, values)
    offers = {1: b"", 2: b""}
    with pytest.raises(UserError, match="masked it before"):
        federation.masking[0].mask(4, values[0], offers)
    with pytest.raises(UserError, match="at step 4 already"):
        federation.masking[0].offer(4)
    with pytest.raises(UserError, match="at step 4 already"):
        federation.masking[0].offer(3)


def test_an_offer_asked_for_again_is_the_same_and_an_earlier_one_is_gone():
    site = Federation(3, 1).masking[0]
    assert site.offer(2) is site.offer(2)
    later = site.offer(5)
    with pytest.raises(UserError, match="at step 5 already"):
        site.offer(2)
    with pytest.raises(UserError, match="holds no offer of its own"):
        site.mask(2, vectors(1)[0], {1: b"", 2: b""})
    assert site.offer(5) is later


def test_the_next_steps_offers_travel_before_this_step_is_revealed():
    federation, values = Federation(3, 1), vectors(3)
    server, _ = federation.masked_step(0, values)
    federation.offers(1)
    assert server.total(federation.reveals(0, server.close())).tolist() == plain_sum(values, range(3))
    server, _ = federation.masked_step(1, values)
    assert server.total(federation.reveals(1, server.close())).tolist() == plain_sum(values, range(3))


def test_shares_of_a_second_set_are_refused_and_the_first_answer_can_be_had_again():
    federation = Federation(4, 1)
    federation.masked_step(0, vectors(4))
    site = federation.masking[0]
    first = site.reveal(0, {0, 1, 2})
    for other in ({0, 1, 3}, {0, 1, 2, 3}):
        with pytest.raises(UserError, match="another set"):
            site.reveal(0, other)
    assert site.reveal(0, [2, 1, 0]) == first


def test_an_answer_holds_one_kind_of_share_for_each_site():
    federation = Federation(4, 1)
    federation.masked_step(0, vectors(4))
    held = federation.masking[0]._masked.shares
    answer = federation.masking[0].reveal(0, {0, 1, 2})
    assert answer == {0: held[0].of_seed, 1: held[1].of_seed, 2: held[2].of_seed, 3: held[3].of_key}


@pytest.mark.parametrize(("arrived", "reason"), [({0, 1}, "at least 3"), (set(), "at least 3"), ({0, 1, 2, 9}, r"sites \[9\]")])
def test_arrivals_that_cannot_be_are_refused(arrived, reason):
    federation = Federation(4, 1)
    federation.masked_step(0, vectors(4))
    with pytest.raises(UserError, match=reason):
        federation.masking[0].reveal(0, arrived)
    assert federation.masking[0].reveal(0, {0, 1, 2}).keys() == {0, 1, 2, 3}


def test_a_site_outside_the_roster_cannot_be_said_to_have_arrived():
    federation = Federation(4, 1)
    federation.masked_step(0, vectors(4), roster=[0, 1, 2])
    with pytest.raises(UserError, match="not in the step's roster"):
        federation.masking[0].reveal(0, {0, 1, 2, 3})


def test_a_step_is_forgotten_when_a_later_one_is_masked_or_the_site_restarts():
    federation, values = Federation(3, 1), vectors(3)
    federation.masked_step(0, values)
    federation.masked_step(1, values)
    with pytest.raises(UserError, match="gone on to a later step"):
        federation.masking[0].reveal(0, {0, 1, 2})
    with pytest.raises(UserError, match="did not mask it"):
        federation.site(0).reveal(1, {0, 1, 2})


def test_a_restarted_site_offers_other_secrets_under_another_nonce():
    federation = Federation(3, 1)
    offers = [federation.site(0).offer(0) for _ in range(20)]
    fresh = ([offer.ciphertexts[1][:12] for offer in offers], [offer.public[:32] for offer in offers])
    for drawn in (*fresh, [offer.public[32:] for offer in offers]):
        assert len(set(drawn)) == 20


@pytest.mark.parametrize(("sites", "tolerated", "both"), [(3, 1, True), (4, 1, False), (5, 2, True)])
def test_a_lying_server_with_colluding_sites_gets_both_kinds_of_share_only_if_3t_reaches_n(sites, tolerated, both):
    """It tells half of the honest sites that the victim arrived, and the others that it did not."""
    federation = Federation(sites, tolerated)
    federation.masked_step(0, vectors(sites))
    everyone, victim = set(range(sites)), 0
    colluding = set(range(sites - tolerated, sites))
    honest = sorted(everyone - colluding)
    seeds = len(colluding) + len(honest[::2])
    keys = len(colluding) + len(honest[1::2])
    for site in honest:
        told = everyone if site in honest[::2] else everyone - {victim}
        federation.masking[site].reveal(0, told)
    needed = threshold(sites, tolerated)
    assert (seeds >= needed and keys >= needed) == both


# ---- what the server refuses, and what is said to nobody


def test_the_server_adds_each_site_of_the_roster_once_and_in_time():
    federation, values = Federation(4, 1), vectors(4)
    server, masked = federation.masked_step(0, values, roster=[0, 1, 2], arriving=[0, 1])
    for site, vector, reason in (
        (3, masked[0], "made no offer"),
        (0, masked[0], "arrived before"),
        (2, masked[2][:-1], "expected"),
        (2, masked[2].astype(np.int64), "expected"),
    ):
        with pytest.raises(UserError, match=reason):
            server.add(site, vector)
    with pytest.raises(UserError, match="sites 0, 1 arrived, at least 3"):
        server.close()
    server.add(2, masked[2])
    arrived = server.close()
    assert server.total(federation.reveals(0, arrived)).tolist() == plain_sum(values, [0, 1, 2])


def test_public_values_of_another_length_are_refused():
    with pytest.raises(UserError, match="public values of site 1 do not have 64"):
        Unmasking(2, 0, TERMS, 0, {0: bytes(64), 1: bytes(63)}, SIZE)


@pytest.mark.parametrize(("sites", "tolerated"), [(1, 0), (0, 0), (2, 1), (4, 2), (9, 5), (3, -1)])
def test_too_many_tolerated_sites_are_refused(sites, tolerated):
    with pytest.raises(UserError, match="at least 2 sites|cannot be tolerated"):
        threshold(sites, tolerated)


def test_sites_are_numbered_without_gaps():
    federation = Federation(3, 1)
    for peers in ({1: federation.public[1], 3: federation.public[2]}, {0: federation.public[0], 1: federation.public[1]}):
        with pytest.raises(UserError, match="numbered from 0 to 2"):
            federation.site(0, peers=peers)


def test_secrets_are_not_shown():
    federation = Federation(2, 0)
    federation.masked_step(0, vectors(2))
    federation.offers(1)
    site = federation.masking[0]
    shown = f"{site} {site!r} {site._masked} {site._masked.shares} {site._offered}"
    assert "b'" not in shown and "PrivateKey" not in shown


def test_sites_and_server_need_neither_torch_nor_flower():
    secure = "dpfed.federation.secure.masking, dpfed.federation.secure.unmasking"
    code = f"import sys, {secure}, dpfed.federation.protocol.fixed_point; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "flwr", "ray"} & set(loaded)
