"""Long sums in blocks: each number gets its noise exactly once, from a key that no other block's holder has."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpfed.errors import UserError
from dpfed.privacy.blocks import LENGTH, SMALL, Blocks, SumNoise, add_to_blocks_, block_length
from dpfed.privacy.noise import DiscreteGaussianNoise, GaussianNoise, KeyedNoise, digest_of
from dpfed.privacy.randomness import Randomness

SECRET, CONTEXT = Randomness.from_seed(5), "plan"
BLOCKS = Blocks(10_037, 1000)


def noise_on(values, blocks=BLOCKS, step=0, std=2.0):
    noisy = values.clone()
    SumNoise(GaussianNoise(std), SECRET, blocks, CONTEXT).add_(noisy, step)
    return noisy


@pytest.mark.parametrize("kind", [GaussianNoise(2.0), DiscreteGaussianNoise(1.0, 2.0)])
def test_blocks_made_one_by_one_have_the_bits_and_the_digest_of_the_whole(kind):
    clean = torch.randn(BLOCKS.size)
    whole, secret = clean.clone(), SumNoise(kind, SECRET, BLOCKS, CONTEXT)
    secret.add_(whole, 3)
    context, parts = secret.context_of(BLOCKS.digest(clean)), []
    for number in range(BLOCKS.count):
        part = clean[BLOCKS.place(number, number + 1)].clone()
        add_to_blocks_(BLOCKS, part, kind, secret.keys(3, number, number + 1), context, 3)
        parts.append(part)
    assert torch.equal(torch.cat(parts), whole)
    assert BLOCKS.joined([digest for part in parts for digest in BLOCKS.digests(part)]) == BLOCKS.digest(whole)


def test_a_gpus_way_through_many_blocks_adds_the_same_noise(monkeypatch):
    """Rounded once from float64: the last bit at most, where a library computes rows otherwise than vectors."""
    blocks, clean = Blocks(70_300, 1000), torch.randn(70_300)
    expected = noise_on(clean, blocks, 4)
    monkeypatch.setattr("dpfed.privacy.blocks.has_kernel", lambda blocks, values: True)

    def words(keys, count, device):
        streams = [Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count)) for key in keys]
        return torch.frombuffer(bytearray(b"".join(streams)), dtype=torch.int64).view(len(keys), count)

    monkeypatch.setitem(sys.modules, "dpfed.privacy.keystream_kernel", SimpleNamespace(words=words))
    found = noise_on(clean, blocks, 4)
    torch.testing.assert_close(found, expected, rtol=2.0**-23, atol=0)
    assert (found == expected).float().mean() > 0.99


def test_every_number_gets_noise_of_the_planned_deviation_once():
    size = 300_000
    noise = noise_on(torch.zeros(size), Blocks(size, 1000))
    assert noise.std().item() == pytest.approx(2.0, rel=4 / math.sqrt(2 * size))  # noise twice would be sqrt(2) times that
    by_block = noise.view(-1, 1000)
    # Each block by itself: none is left out, none has more. Six standard errors, for 300 blocks.
    assert ((by_block.std(dim=1) / 2 - 1).abs() < 6 / math.sqrt(2000)).all()
    across = torch.corrcoef(by_block)[~torch.eye(300, dtype=torch.bool)]
    assert across.abs().max() < 6 / math.sqrt(1000)  # blocks share no noise, though their numbers are equal


def test_noise_is_fresh_by_step_plan_and_block():
    keys = SumNoise(GaussianNoise(1.0), SECRET, BLOCKS, CONTEXT).keys
    assert len({key for step in range(5) for key in keys(step, 0, BLOCKS.count)}) == 5 * BLOCKS.count
    clean, [key], noises = torch.randn(1000), keys(0, 2, 3), []
    for context, step in [("a", 0), ("b", 0), ("a", 1)]:
        noisy = clean.clone()
        add_to_blocks_(Blocks(1000, 1000), noisy, GaussianNoise(1.0), [key], context, step)
        noises.append(noisy - clean)
    assert torch.corrcoef(torch.stack(noises))[~torch.eye(3, dtype=torch.bool)].abs().max() < 0.2


def test_another_sum_has_other_noise_in_every_block_also_where_it_is_the_same():
    """Or copies of a run that part ways would show in which blocks their sums are equal."""
    one = torch.randn(BLOCKS.size)
    other = one.clone()
    other[4321] = other[4321].nextafter(torch.tensor(9.0))
    noises = torch.stack([noise_on(values).double() - values.double() for values in (one, other)])
    for block in noises[:, :10_000].view(2, 10, 1000).unbind(1):
        assert abs(torch.corrcoef(block)[0, 1]) < 0.2
    assert torch.equal(noise_on(one), noise_on(one))


def test_what_holds_a_blocks_key_derives_no_other_blocks_noise():
    clean, secret = torch.zeros(BLOCKS.size), SumNoise(GaussianNoise(1.0), SECRET, BLOCKS, CONTEXT)
    noisy, context, known = noise_on(clean, std=1.0), secret.context_of(BLOCKS.digest(clean)), secret.keys(0, 3, 5)

    def noise_of(randomness, count):
        tried = torch.zeros(count)
        GaussianNoise(1.0).add_(tried, randomness, "noise", 0, 0, context)
        return tried

    for key in known:
        for number, block in enumerate(BLOCKS.cut(noisy)):
            if number not in (3, 4):
                for guess in (Randomness(key), Randomness(Randomness(key).key("block of noise", number))):
                    assert not torch.equal(noise_of(guess, len(block)), block)
    assert torch.equal(noise_of(Randomness(known[0]), 1000), noisy[3000:4000])  # so the comparison would have found one
    assert SECRET.master not in known and SECRET.for_owners().master not in known


@pytest.mark.parametrize("size", [3, SMALL])
def test_a_short_sum_has_the_noise_and_the_digest_that_it_had_before_there_were_blocks(size):
    assert block_length(size) is None
    clean = torch.linspace(-1, 1, size)
    noisy, blocks = noise_on(clean, Blocks(size)), Blocks(size)
    before = KeyedNoise(GaussianNoise(2.0), SECRET, "noise", CONTEXT).add_(clean.clone(), 0)
    assert torch.equal(noisy, before) and blocks.digest(noisy) == digest_of(noisy)
    with pytest.raises(ValueError, match="coordinator's alone"):
        SumNoise(GaussianNoise(2.0), SECRET, blocks, CONTEXT).keys(0, 0, 1)


def test_a_digest_covers_every_block_their_order_and_the_way_they_are_cut():
    values = torch.randn(BLOCKS.size)
    digests = BLOCKS.digests(values)
    found = {BLOCKS.joined(digests), BLOCKS.joined([digests[1], digests[0], *digests[2:]])}
    found |= {BLOCKS.joined([*digests[:number], "0" * 32, *digests[number + 1 :]]) for number in range(BLOCKS.count)}
    found |= {Blocks(BLOCKS.size, 500).digest(values), digest_of(values)}
    assert len(found) == BLOCKS.count + 4
    with pytest.raises(ValueError, match="11 blocks"):
        BLOCKS.joined(digests[1:])


def test_new_long_sums_are_cut():
    assert block_length(SMALL + 1) == LENGTH


def test_the_rounding_of_discrete_noise_has_its_room_in_the_whole_sum():
    with pytest.raises(UserError, match="4,294,967,296 .*noise-many-numbers"):
        SumNoise(DiscreteGaussianNoise(1.0, 1.0), SECRET, Blocks(2**32 + 1, LENGTH), CONTEXT)


@pytest.mark.parametrize("works", [False, None])
def test_a_gpu_whose_kernel_is_wrong_or_absent_gets_the_hosts_bits(works, monkeypatch):
    expected = noise_on(torch.ones(BLOCKS.size))
    kernel = None if works is None else SimpleNamespace(works_on=lambda device, count: works)  # None: it cannot be imported
    monkeypatch.setitem(sys.modules, "dpfed.privacy.keystream_kernel", kernel)
    monkeypatch.setattr("dpfed.privacy.blocks._on_gpu", lambda values: True)
    assert torch.equal(noise_on(torch.ones(BLOCKS.size)), expected)


def test_two_blocks_never_get_the_noise_of_one_key():
    clean, secret = torch.zeros(3000), SumNoise(GaussianNoise(2.0), SECRET, BLOCKS, CONTEXT)
    with pytest.raises(ValueError, match="1 keys for 3 blocks"):
        add_to_blocks_(BLOCKS, clean, GaussianNoise(2.0), secret.keys(0, 0, 1), "context", 0)
    assert not clean.any()
