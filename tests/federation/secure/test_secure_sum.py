"""Secure sums: exact for every pattern of drop-outs, opaque before that, and refusing whatever would open a single site."""

import contextlib
import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from Crypto.Cipher import AES
from Crypto.Util import Counter
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.errors import UserError
from dpfed.federation.coordinator.secure_sum import SecureSum
from dpfed.federation.secure.masking import NotOffered
from dpfed.federation.secure.masks import StepKeys, add_mask, agreed, public_bytes
from dpfed.protocol.answers import Rejected
from dpfed.protocol.fixed_point import Grid
from dpfed.protocol.identity import Identity
from dpfed.protocol.trust import Trust
from tests.federation.secure.protocol import RNG, SIZE, TERMS, Federation, combine, plain_sum, vectors

# What a site may do in a step, from the worst to the best.
BEHAVIOURS = ("no offer", "no mask", "late", "no vote", "no reveal", "stays")


def run_step(federation: Federation, step: int, behaviour: tuple[str, ...], values: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """A whole step; returns the total and who is in it."""
    offers = federation.offers(step, [site for site, does in enumerate(behaviour) if does != "no offer"])
    masked = {site: federation.mask(site, step, values[site], offers) for site in offers if behaviour[site] != "no mask"}
    server = federation.server(step, offers)
    for site, vector in masked.items():
        if behaviour[site] != "late":
            server.add(site, vector, federation.signature(site, step))
    arrived = server.close()
    if not federation.parties.drops:
        return server.total({}), sorted(arrived)
    federation.votes(server, step, arrived, [site for site in arrived if behaviour[site] != "no vote"])
    assert server.confirmed, "votes are needed"
    givers = [site for site in arrived if behaviour[site] not in ("no vote", "no reveal")]
    shares = {site: federation.masking[site].reveal(step, arrived, server.rosters, server.votes) for site in givers}
    return server.total(shares), sorted(arrived)


def patterns(sites: int, faults: int) -> list[tuple[str, ...]]:
    every = itertools.product(BEHAVIOURS, repeat=sites)
    return [pattern for pattern in every if sum(does != "stays" for does in pattern) == faults]


@pytest.mark.parametrize(("sites", "drops"), [(2, 0), (3, 0), (3, 1), (4, 1), (5, 2)])
def test_the_sum_is_exact_for_every_pattern_of_tolerated_faults(sites, drops):
    federation, step = Federation(sites, drops), itertools.count()
    for faults in range(drops + 1):
        chosen = patterns(sites, faults)
        for behaviour in chosen[:: max(1, len(chosen) // 40)]:
            values = vectors(sites)
            total, arrived = run_step(federation, next(step), behaviour, values)
            assert arrived == [site for site, does in enumerate(behaviour) if does in ("stays", "no reveal", "no vote")]
            assert total.tolist() == plain_sum(values, arrived), behaviour


@pytest.mark.parametrize(("sites", "drops"), [(2, 0), (3, 1), (4, 1)])
def test_one_fault_more_gives_no_sum(sites, drops):
    federation, step = Federation(sites, drops), itertools.count()
    for behaviour in patterns(sites, drops + 1):
        if drops == 0 and set(behaviour) & {"no vote", "no reveal"}:
            continue  # nothing is voted on or revealed
        with pytest.raises((UserError, AssertionError), match="needed"):
            run_step(federation, next(step), behaviour, vectors(sites))


def test_where_no_site_may_drop_out_masks_cancel_by_themselves():
    """No secret is shared out, and nothing is asked back."""
    federation, values = Federation(4, 0, 1), vectors(4)
    server, masked = federation.masked_step(0, values)
    assert server.close() and server.total({}).tolist() == plain_sum(values, range(4))
    assert np.add.reduce(list(masked.values()), dtype=np.uint32).tolist() == plain_sum(values, range(4))
    offer = federation.masking[0].offer(1)
    assert len(offer.public) == 32 and {len(envelope) for envelope in offer.envelopes.values()} == {32 + 12 + 16}
    for ask in (federation.masking[0].confirm, lambda *given: federation.masking[0].reveal(*given, {}, {})):
        with pytest.raises(UserError, match="mask-no-drops"):
            ask(0, {0, 1, 2})


def test_late_vectors_are_not_added_but_their_sites_may_reveal():
    federation, values = Federation(5, 2), vectors(5)
    server, masked = federation.masked_step(0, values, arriving=[0, 2, 4])
    arrived = server.close()
    with pytest.raises(UserError, match="closed.*share-vector-late"):
        server.add(1, masked[1], federation.signature(1, 0))
    assert server.total(federation.reveals(server, 0, arrived, [1, 3, 4])).tolist() == plain_sum(values, [0, 2, 4])


def test_noised_vectors_go_through_the_grid_and_back():
    federation, grid = Federation(3, 1), Grid.for_sums(bound=8, noise_std=2.0, share_std=1.0)
    parts = RNG.normal(scale=2, size=(3, SIZE)).astype(np.float32)
    server, _ = federation.masked_step(0, np.array([grid.encode(part) for part in parts]), arriving=[0, 2])
    decoded = grid.decode(federation.total(server, 0))
    assert np.abs(decoded - (parts[0].astype(np.float64) + parts[2])).max() < 2 * grid.spacing + 1e-6


@pytest.mark.parametrize("value", [0, 1, 2**31, "ramp"])
@pytest.mark.parametrize(("site", "sites", "drops"), [(0, 2, 0), (1, 2, 0), (1, 3, 1)])
def test_a_masked_vector_is_uniform_whatever_it_hides(value, site, sites, drops):
    size = 400_000
    values = np.zeros((sites, size), np.uint32)
    values[site] = np.arange(size) if value == "ramp" else value
    federation = Federation(sites, drops)
    server, masked = federation.masked_step(0, values)
    for words in (masked[site], masked[site] - values[site]):
        for piece in (words >> 24, words & 0xFF, words[::2] + words[1::2] & 0xFF):
            assert scipy.stats.chisquare(np.bincount(piece, minlength=256)).pvalue > 1e-7
    if drops:  # two sites alone mask each other with the same stream
        assert abs(np.corrcoef(masked[0].astype(float), masked[1].astype(float))[0, 1]) < 0.01
    assert federation.total(server, 0).tolist() == values[site].tolist()


def test_the_same_vector_is_masked_afresh_in_every_step():
    federation, values = Federation(3, 1), vectors(3)
    for one, other in itertools.combinations([federation.masked_step(step, values)[1][0] for step in range(3)], 2):
        assert (one != other).mean() > 0.9


def test_a_mask_is_the_key_stream_that_another_library_computes():
    values, key = vectors(1, 3 * 2**14 + 1)[0], bytes(range(32))  # several chunks and a rest of one
    cipher = AES.new(key, AES.MODE_CTR, counter=Counter.new(128, initial_value=0))
    stream = np.frombuffer(cipher.encrypt(bytes(4 * len(values))), "<u4")
    masked = values.copy()
    add_mask(masked, key, +1)
    assert np.array_equal(masked, values + stream)
    add_mask(masked, key, -1)
    assert np.array_equal(masked, values)


def test_every_run_step_purpose_direction_and_pair_has_own_keys():
    mine, other, seed = X25519PrivateKey.generate(), X25519PrivateKey.generate(), bytes(32)
    theirs, ours = other.public_key().public_bytes_raw(), mine.public_key().public_bytes_raw()
    assert (secret := agreed(mine, theirs, "long-term")) == agreed(other, ours, "long-term")
    derived = []
    for keys in (StepKeys(context, step) for context in (b"one run", b"another") for step in (0, 1)):
        derived += [keys.envelope(secret, *way) for way in ((0, 1), (1, 0), (0, 2))]
        derived += [keys.self_mask(seed, 0), keys.self_mask(seed, 1), keys.self_check(seed, 0), keys.self_check(seed, 1)]
        derived += [keys.pair_mask(mine, theirs, 0, 1), keys.pair_mask(mine, theirs, 0, 2)]
        assert keys.pair_mask(mine, theirs, 0, 1) == keys.pair_mask(other, ours, 1, 0)
    assert len(set(derived)) == len(derived)


# ---- many sites


@pytest.mark.parametrize(("drops", "colluders"), [(0, 0), (0, 1), (20, 1), (70, 5), (100, 60)])
def test_partners_are_mutual_and_connected_whoever_leaves(drops, colluders):
    """Also the worst choice: two runs of neighbours on the circle."""
    for sites in (129, 130, 201, 400):
        if 2 * drops + colluders >= sites:
            continue
        parties = Trust("secure", sites, drops, colluders)
        partners = [parties.partners(site) for site in range(sites)]
        assert all(site in partners[other] and site != other for site in range(sites) for other in partners[site])
        assert {len(each) for each in partners} == {parties.links}
        assert parties.links >= min(sites - 1, drops + colluders + 1)
        for _ in range(20):
            gone = set(RNG.choice(sites, drops + colluders, replace=False).tolist())
            assert connected(partners, set(range(sites)) - gone)
        half = (drops + colluders) // 2
        for gap in (1, 2, sites // 2 - half - 1):
            gone = {at % sites for start in (0, half + gap) for at in range(start, start + half)}
            assert connected(partners, set(range(sites)) - gone)


def connected(partners, sites) -> bool:
    reached, waiting = set(), [min(sites)]
    while waiting:
        site = waiting.pop()
        if site not in reached:
            reached.add(site)
            waiting += partners[site] & sites
    return reached == sites


@pytest.mark.parametrize("links", [2, 4])
def test_sums_over_a_circle_of_partners_are_exact(links, monkeypatch):
    monkeypatch.setattr("dpfed.protocol.trust._PARTNERS", links)
    federation, values = Federation(9, 2, 1), vectors(9)
    assert federation.parties.links == 4 and len(federation.parties.partners(0)) == 4
    server, masked = federation.masked_step(0, values, arriving=[0, 2, 3, 4, 5, 7, 8])
    assert federation.total(server, 0).tolist() == plain_sum(values, [0, 2, 3, 4, 5, 7, 8])
    assert (masked[3] != values[3]).all()


# ---- too few shares, wrong shares


def test_shares_open_a_secret_at_the_threshold_and_not_below():
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
def test_too_few_reveals_leave_the_sum_masked_until_more_come(arriving):
    federation, values = Federation(5, 2), vectors(5)
    server, _ = federation.masked_step(0, values, arriving=arriving)
    reveals = federation.reveals(server, 0, server.close())
    with pytest.raises(UserError, match=r"sites 0, .* 3 sites are needed.*\[share-few\]"):
        server.total(dict(list(reveals.items())[:2]))
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
    reveals = federation.reveals(server, 0, server.close())
    for at in (0, 15, 16, 31):
        wrong = bytearray(reveals[2])
        wrong[32 * of + at] ^= 1
        with pytest.raises(UserError, match=f"sites 0, 2 .* of site {of}:.*share-wrong"):
            server.total(reveals | {2: bytes(wrong)})


@pytest.mark.parametrize(("sites", "drops"), [(3, 1), (7, 2), (30, 5)])
def test_wrong_shares_spoil_no_step_that_can_do_without_them(sites, drops):
    federation, values = Federation(sites, drops), vectors(sites)
    server, _ = federation.masked_step(0, values)
    reveals = federation.reveals(server, 0, server.close())
    for liar in range(sites):
        assert server.total(reveals | {liar: bytes(32 * sites)}).tolist() == plain_sum(values, range(sites))


# ---- what sites refuse


def test_a_changed_offer_is_refused_and_nothing_is_masked():
    federation, values = Federation(3, 1), vectors(3)
    right = federation.offers_to(0, federation.offers(0))
    for at in range(0, len(right[1]), 7):
        wrong = bytearray(right[1])
        wrong[at] ^= 1
        with pytest.raises(UserError, match="site 1 .*mask-offer"):
            federation.masking[0].open(0, right | {1: bytes(wrong)})
    for wrong in (b"", right[1][:11], right[1][:-1], right[1] + b"\0"):
        with pytest.raises(UserError, match="site 1 .*mask-offer"):
            federation.masking[0].open(0, right | {1: wrong})
    federation.masking[0].mask(federation.masking[0].open(0, right), values[0])  # the right ones can still be used


def test_offers_of_others_steps_and_runs_are_refused():
    federation = Federation(3, 1)
    old = federation.offers(0)
    offers = federation.offers(1)
    foreign = federation.site(1, context=b"other terms").offer(1)
    strangers = [federation.identities[0], Identity.fresh(), federation.identities[2]]
    stranger = federation.site(1, identities=strangers).offer(1)
    substitutes = {
        "replayed": old[1].envelopes[0],
        "of another run": foreign.envelopes[0],
        "under another identity": stranger.envelopes[0],
        "of another sender": offers[2].envelopes[0],
        "for another receiver": offers[1].envelopes[2],
        "my own": offers[0].envelopes[1],
        "with another round key": old[1].envelopes[0][:32] + offers[1].envelopes[0][32:],
    }
    for what, substitute in substitutes.items():
        with pytest.raises(UserError, match="site 1 .*mask-offer"):
            federation.masking[0].open(1, {1: substitute, 2: offers[2].envelopes[0]})
            pytest.fail(what)
    for number in (7, 0, -1):
        with pytest.raises(UserError, match=f"site {number} as its sender.*mask-sender"):
            federation.masking[0].open(1, {number: offers[1].envelopes[0], 2: offers[2].envelopes[0]})


def test_a_round_key_that_gives_all_the_same_secret_is_refused(monkeypatch):
    federation = Federation(3, 1)
    monkeypatch.setattr("dpfed.federation.secure.masking.public_bytes", lambda key: bytes(32))
    hostile = federation.masking[1].offer(0)
    monkeypatch.undo()
    federation.masking[0].offer(0)
    with pytest.raises(UserError, match="key-exchange"):
        federation.masking[0].open(0, {1: hostile.envelopes[0]})


def test_a_roster_below_the_threshold_is_refused():
    federation = Federation(4, 1)
    offers = federation.offers(0)
    with pytest.raises(UserError, match="2 sites, at least 3.*mask-few-offers"):
        federation.masking[0].open(0, {1: offers[1].envelopes[0]})
    with pytest.raises(UserError, match="3 sites.*share-few-offers"):
        federation.server(0, {site: offers[site] for site in (0, 1)})


def test_a_step_is_masked_once():
    federation, values = Federation(3, 1), vectors(3)
    offers = federation.offers(4)
    opened = federation.masking[0].open(4, federation.offers_to(0, offers))
    federation.masking[0].mask(opened, values[0])
    with pytest.raises(NotOffered, match="masked it before"):
        federation.masking[0].open(4, federation.offers_to(0, offers))
    with pytest.raises(NotOffered, match="masked it before"):
        federation.masking[0].mask(opened, values[0])
    for step in (4, 3):
        with pytest.raises(NotOffered, match="masked step 4.*mask-late"):
            federation.masking[0].offer(step)


def test_offers_of_several_steps_wait_until_a_later_is_masked():
    federation, values = Federation(3, 1), vectors(3)
    now, ahead = federation.offers(2), federation.offers(3)
    assert federation.masking[0].offer(2) is now[0] and federation.masking[0].offer(3) is ahead[0]
    assert (federation.mask(0, 3, values[0], ahead) != values[0]).any()  # a later one first: then the earlier one is over
    with pytest.raises(NotOffered, match="mask-no-offer"):
        federation.masking[0].open(2, federation.offers_to(0, now))
    federation.mask(1, 2, values[1], now)
    federation.mask(1, 3, values[1], ahead)


def test_the_next_offers_travel_before_this_step_is_revealed():
    federation, values = Federation(3, 1), vectors(3)
    server, _ = federation.masked_step(0, values)
    federation.offers(1)
    assert federation.total(server, 0).tolist() == plain_sum(values, range(3))
    server, _ = federation.masked_step(1, values)
    assert federation.total(server, 1).tolist() == plain_sum(values, range(3))


def test_a_later_mask_or_a_restart_makes_a_site_forget_a_step():
    federation, values = Federation(3, 1), vectors(3)
    server, _ = federation.masked_step(0, values)
    federation.masked_step(1, values)
    with pytest.raises(UserError, match="mask-step-over"):
        federation.masking[0].reveal(0, {0, 1, 2}, server.rosters, {})
    with pytest.raises(UserError, match="mask-step-over"):
        federation.site(0).reveal(1, {0, 1, 2}, server.rosters, {})


def test_a_restarted_site_offers_other_secrets_and_a_new_nonce():
    federation = Federation(3, 1)
    offers = [federation.site(0).offer(0) for _ in range(20)]
    fresh = ([offer.envelopes[1][32:44] for offer in offers], [offer.public[:32] for offer in offers])
    for drawn in (*fresh, [offer.public[32:] for offer in offers]):
        assert len(set(drawn)) == 20


# ---- what the server refuses, and what is said to nobody


def test_the_coordinator_says_why_a_sum_is_not_added():
    federation = Federation(4, 1)
    server, masked = federation.masked_step(0, vectors(4), roster=[0, 1, 2], arriving=[0, 1])
    step = SecureSum.__new__(SecureSum)
    step._unmasking = server
    for site, vector, by, said in (
        (3, masked[0], 2, "it is not in this step's roster"),
        (0, masked[0], 0, "it sent a second sum"),
        (2, masked[2][:-1], 2, "its sum has another length"),
        (2, masked[2], 1, "it has not signed this step's roster"),
        (2, masked[2], 2, None),
        (1, masked[1], 1, "it sent a second sum"),
    ):
        with pytest.raises(Rejected, match=f"^{said}$") if said else contextlib.nullcontext():
            step.add(site, SimpleNamespace(roster=federation.signature(by, 0)), vector.tobytes())
    server, masked = federation.masked_step(1, vectors(4), arriving=[0, 1, 2])
    server.close()
    step._unmasking = server
    with pytest.raises(Rejected, match="^its sum arrived after the step was closed$"):
        step.add(3, SimpleNamespace(roster=federation.signature(3, 1)), masked[3].tobytes())


def test_the_server_adds_each_site_of_the_roster_once_in_time():
    federation, values = Federation(4, 1), vectors(4)
    server, masked = federation.masked_step(0, values, roster=[0, 1, 2], arriving=[0, 1])
    right = federation.signature(2, 0)
    for site, vector, signature, reason in (
        (3, masked[0], right, "made no offer.*share-not-in-roster"),
        (0, masked[0], right, "second vector.*share-vector-twice"),
        (2, masked[2][:-1], right, "share-shape"),
        (2, masked[2].astype(np.int64), right, "share-shape"),
        (2, masked[2], b"", "share-roster-unsigned"),
        (2, masked[2], federation.signature(1, 0), "share-roster-unsigned"),
    ):
        with pytest.raises(UserError, match=reason):
            server.add(site, vector, signature)
    with pytest.raises(UserError, match="from sites 0, 1; 3 sites are needed.*share-few-arrived"):
        server.close()
    server.add(2, masked[2], right)
    assert federation.total(server, 0).tolist() == plain_sum(values, [0, 1, 2])


@pytest.mark.parametrize(("sites", "drops"), [(1, 0), (0, 0), (2, 1), (4, 2), (9, 5), (3, -1)])
def test_too_many_drops_are_refused(sites, drops):
    with pytest.raises(UserError, match="trust-(alone|secure|drops|numbers)"):
        Trust("secure", sites, drops, 0)


def test_a_site_is_who_the_terms_say():
    federation = Federation(3, 1)
    others = [Identity.fresh(), *federation.identities[1:]]
    for identities, code in ((federation.identities[:2], "mask-cards"), (others, "mask-other-site")):
        with pytest.raises(UserError, match=code):
            type(federation.masking[0])(0, federation.identities[0], identities, federation.parties, TERMS)


def test_secrets_are_not_shown():
    federation = Federation(3, 1)
    federation.masked_step(0, vectors(3))
    opened = federation.masking[0].open(1, federation.offers_to(0, federation.offers(1)))
    site = federation.masking[0]
    shown = f"{site} {site!r} {site._masked} {site._masked.shares} {site._offered} {opened}"
    assert "b'" not in shown and "PrivateKey" not in shown


def test_sites_and_server_need_neither_torch_nor_flower():
    secure = "dpfed.federation.secure.masking, dpfed.federation.secure.unmasking"
    code = f"import sys, {secure}, dpfed.protocol.fixed_point; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "flwr", "ray"} & set(loaded)
