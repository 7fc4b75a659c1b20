"""What lies on disk before it is charged: nobody without the key can read it, and nobody can change it unnoticed."""

import numpy as np
import pytest

from dpfed.privacy.randomness import Randomness
from dpfed.privacy.sealing import opened, sealed

KEY, PURPOSE = Randomness.from_seed(1), "a test"


def content(size=1000, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
def test_what_is_sealed_opens_to_the_same(size):
    value = content(size)
    raw = sealed(value, KEY, PURPOSE)
    assert len(raw) == size + 32 and np.array_equal(opened(raw, KEY, PURPOSE), value)
    assert np.array_equal(raw, sealed(value.copy(), KEY, PURPOSE))  # seeded runs write the same bytes


def test_a_changed_bit_or_length_or_another_key_opens_nothing():
    raw = sealed(content(40), KEY, PURPOSE)
    for place in range(8 * len(raw)):
        changed = raw.copy()
        changed[place // 8] ^= 1 << place % 8
        assert opened(changed, KEY, PURPOSE) is None
    assert all(opened(raw[:length], KEY, PURPOSE) is None for length in range(len(raw)))
    assert opened(raw, Randomness.from_seed(2), PURPOSE) is None and opened(raw, KEY, "another") is None


def test_two_contents_share_no_stream():
    """With one stream for both, the difference of what is written would be that of the contents."""
    zeros = np.zeros(4096, np.uint8)
    one = zeros.copy()
    one[-1] = 1
    streams = [sealed(value, key, purpose)[32:] for value, key, purpose in ((zeros, KEY, PURPOSE), (one, KEY, PURPOSE))]
    streams += [sealed(zeros, Randomness.from_seed(2), PURPOSE)[32:], sealed(zeros, KEY, "another")[32:]]
    for number, first in enumerate(streams):
        assert abs(np.unpackbits(first).mean() - 0.5) < 0.02  # 32,768 bits: 7 standard deviations
        for second in streams[number + 1 :]:
            assert abs(np.unpackbits(first ^ second).mean() - 0.5) < 0.02
