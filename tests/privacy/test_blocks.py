"""Long sums in blocks: each number gets its noise exactly once, from a key that no other block's holder has."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpfed.privacy.blocks import LENGTH, SMALL, Blocks, SumNoise, block_length, noisy_blocks
from dpfed.privacy.noise import DiscreteGaussianNoise, GaussianNoise, KeyedNoise, digest_of, in_floats
from dpfed.privacy.randomness import Randomness

SECRET, CONTEXT = Randomness.from_seed(5), "plan"
BLOCKS, UNIT = Blocks(10_037, 1000), 2.0**-20


def exact(size):
    """An exact sum: whole numbers of steps."""
    return torch.randint(-(10**6), 10**6, (size,))


def noise_on(values, blocks=BLOCKS, step=0, std=2.0):
    return SumNoise(GaussianNoise(std, UNIT), SECRET, blocks, CONTEXT).noisy(values, step)


@pytest.mark.parametrize("kind", [GaussianNoise(2.0, UNIT), DiscreteGaussianNoise(UNIT, 1 << 10)])
def test_single_blocks_have_the_bits_and_digest_of_the_whole(kind):
    clean, secret = exact(BLOCKS.size), SumNoise(kind, SECRET, BLOCKS, CONTEXT)
    whole = secret.noisy(clean, 3)
    context, parts = secret.context_of(BLOCKS.digest(clean)), []
    for number in range(BLOCKS.count):
        part = clean[BLOCKS.place(number, number + 1)]
        parts.append(noisy_blocks(BLOCKS, part, kind, secret.keys(3, number, number + 1), context, 3))
    assert torch.equal(torch.cat(parts), whole)
    assert BLOCKS.joined([digest for part in parts for digest in BLOCKS.digests(part)]) == BLOCKS.digest(whole)


@pytest.mark.parametrize(("size", "launches"), [(70_300, 2), (70_301, 2), (71_000, 1), (300_002, 3)])
def test_a_gpus_way_through_many_blocks_adds_the_same_noise(size, launches, monkeypatch):
    """In one launch for up to 256 whole blocks, and one for a shorter block.

    The noise is rounded once from float64. The last bit may differ, where a library computes rows otherwise than vectors.
    """
    blocks, clean = Blocks(size, 1000), exact(size)
    expected = noise_on(clean, blocks, 4)
    monkeypatch.setattr("dpfed.privacy.blocks.has_kernel", lambda values, count: count % 2 == 0)
    launched = []

    def words(keys, count, device):
        launched.append(len(keys))
        streams = [Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count)) for key in keys]
        return torch.frombuffer(bytearray(b"".join(streams)), dtype=torch.int64).view(len(keys), count)

    monkeypatch.setitem(sys.modules, "dpfed.privacy.keystream_kernel", SimpleNamespace(words=words))
    noisy = noise_on(clean, blocks, 4)
    torch.testing.assert_close(noisy, expected, rtol=2.0**-23, atol=0)
    assert (noisy == expected).float().mean() > 0.99
    assert len(launched) == launches and sum(launched) == blocks.count


def test_every_number_gets_noise_of_the_planned_deviation_once():
    size = 300_000
    noise = noise_on(torch.zeros(size, dtype=torch.int64), Blocks(size, 1000))
    assert noise.std().item() == pytest.approx(2.0, rel=4 / math.sqrt(2 * size))  # noise twice would be sqrt(2) times that
    by_block = noise.view(-1, 1000)
    # Each block by itself: none is left out, none has more. Six standard errors, for 300 blocks.
    assert ((by_block.std(dim=1) / 2 - 1).abs() < 6 / math.sqrt(2000)).all()
    across = torch.corrcoef(by_block)[~torch.eye(300, dtype=torch.bool)]
    assert across.abs().max() < 6 / math.sqrt(1000)  # blocks share no noise, though their numbers are equal


def test_noise_is_fresh_by_step_plan_and_block():
    kind = GaussianNoise(1.0, UNIT)
    keys = SumNoise(kind, SECRET, BLOCKS, CONTEXT).keys
    assert len({key for step in range(5) for key in keys(step, 0, BLOCKS.count)}) == 5 * BLOCKS.count
    clean, [key], noises = exact(1000), keys(0, 2, 3), []
    for context, step in [("a", 0), ("b", 0), ("a", 1)]:
        noises.append(noisy_blocks(Blocks(1000, 1000), clean, kind, [key], context, step) - UNIT * clean)
    assert torch.corrcoef(torch.stack(noises))[~torch.eye(3, dtype=torch.bool)].abs().max() < 0.2


def test_another_sum_has_other_noise_even_in_equal_blocks():
    """Or copies of a run that part ways would show in which blocks their sums are equal."""
    one = exact(BLOCKS.size)
    other = one.clone()
    other[4321] += 1
    noises = torch.stack([noise_on(values).double() - UNIT * values for values in (one, other)])
    for block in noises[:, :10_000].view(2, 10, 1000).unbind(1):
        assert abs(torch.corrcoef(block)[0, 1]) < 0.2
    assert torch.equal(noise_on(one), noise_on(one))


def test_what_holds_a_blocks_key_derives_no_other_blocks_noise():
    clean, kind = torch.zeros(BLOCKS.size, dtype=torch.int64), GaussianNoise(1.0, UNIT)
    secret = SumNoise(kind, SECRET, BLOCKS, CONTEXT)
    noisy, context, known = noise_on(clean, std=1.0), secret.context_of(BLOCKS.digest(clean)), secret.keys(0, 3, 5)

    def noise_of(randomness, count):
        return in_floats(kind.steps(torch.zeros(count, dtype=torch.int64), randomness, "noise", 0, 0, context), kind)

    for key in known:
        for number, block in enumerate(BLOCKS.cut(noisy)):
            if number not in (3, 4):
                for guess in (Randomness(key), Randomness(Randomness(key).key("block of noise", number))):
                    assert not torch.equal(noise_of(guess, len(block)), block)
    assert torch.equal(noise_of(Randomness(known[0]), 1000), noisy[3000:4000])  # so the comparison would have found one
    assert SECRET.master not in known and SECRET.for_ranks().master not in known


@pytest.mark.parametrize("size", [3, SMALL])
def test_a_short_sum_is_one_block_with_the_coordinators_own_key(size):
    assert block_length(size) is None
    clean = exact(size)
    noisy, blocks = noise_on(clean, Blocks(size)), Blocks(size)
    before = KeyedNoise(GaussianNoise(2.0, UNIT), SECRET, "noise", CONTEXT).noisy(clean, 0)
    assert torch.equal(noisy, before) and blocks.digest(noisy) == digest_of(noisy)
    with pytest.raises(ValueError, match="coordinator's own key"):
        SumNoise(GaussianNoise(2.0), SECRET, blocks, CONTEXT).keys(0, 0, 1)


def test_a_digest_covers_blocks_their_order_and_their_cuts():
    values = torch.randn(BLOCKS.size)
    digests = BLOCKS.digests(values)
    distinct = {BLOCKS.joined(digests), BLOCKS.joined([digests[1], digests[0], *digests[2:]])}
    distinct |= {BLOCKS.joined([*digests[:number], "0" * 32, *digests[number + 1 :]]) for number in range(BLOCKS.count)}
    distinct |= {Blocks(BLOCKS.size, 500).digest(values), digest_of(values)}
    assert len(distinct) == BLOCKS.count + 4
    with pytest.raises(ValueError, match="11 blocks"):
        BLOCKS.joined(digests[1:])


def test_new_long_sums_are_cut():
    assert block_length(SMALL + 1) == LENGTH


@pytest.mark.parametrize("works", [False, None])
def test_without_a_right_kernel_a_gpu_gets_the_hosts_bits(works, monkeypatch):
    expected = noise_on(torch.ones(BLOCKS.size, dtype=torch.int64))
    kernel = None if works is None else SimpleNamespace(works_on=lambda device, count: works)  # None: it cannot be imported
    monkeypatch.setitem(sys.modules, "dpfed.privacy.keystream_kernel", kernel)
    monkeypatch.setattr("dpfed.privacy.blocks._on_gpu", lambda values: True)
    assert torch.equal(noise_on(torch.ones(BLOCKS.size, dtype=torch.int64)), expected)


def test_two_blocks_never_get_the_noise_of_one_key():
    clean, secret = exact(3000), SumNoise(GaussianNoise(2.0), SECRET, BLOCKS, CONTEXT)
    with pytest.raises(ValueError, match="each of 3 blocks, got 1 keys"):
        noisy_blocks(BLOCKS, clean, GaussianNoise(2.0), secret.keys(0, 0, 1), "context", 0)
