"""A GPU's kernel for the noise's bits, by Triton's interpreter, against the library that computes them on a host."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from dpfed.errors import Notice  # noqa: E402
from dpfed.privacy import keystream_kernel  # noqa: E402
from dpfed.privacy.blocks import LENGTH, PURPOSE  # noqa: E402
from dpfed.privacy.randomness import Randomness  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 1030, LENGTH])  # of a block, whose counter has 15 bits
def test_it_has_the_bits_of_the_hosts_streams(count, monkeypatch):
    if count == LENGTH:  # the interpreter takes as long for a program whatever its size
        monkeypatch.setattr(keystream_kernel, "_TILE", 8192)
    secrets = [Randomness.from_seed(seed) for seed in range(1 if count == LENGTH else 3)]
    words = keystream_kernel.words([secret.stream_key(PURPOSE, 7, 0, "a") for secret in secrets], count, CPU)
    expected = [np.frombuffer(secret.stream(PURPOSE, 7, 0, "a")(8 * count), np.int64) for secret in secrets]
    np.testing.assert_array_equal(words.numpy(), np.stack(expected))


def test_the_substitutions_are_those_of_the_standard():
    assert keystream_kernel._substitutions()[[0x00, 0x53, 0xFF]].tolist() == [0x63, 0xED, 0x16]  # FIPS 197, figure 7


@pytest.mark.long
def test_a_gpu_that_computes_other_bits_is_not_used(monkeypatch):
    assert keystream_kernel.works_on.__wrapped__(CPU, 514)
    table = keystream_kernel._table(CPU) ^ (torch.arange(256) == 200).int() * 256
    monkeypatch.setattr(keystream_kernel, "_table", lambda device: table)
    with pytest.warns(Notice, match="its bits differ from those of the host"):
        assert not keystream_kernel.works_on.__wrapped__(CPU, 514)


@pytest.mark.parametrize("count", [3, 1 << 32])
def test_a_stream_that_the_counter_cannot_count_is_refused(count):
    with pytest.raises(ValueError, match="an even number of words"):
        keystream_kernel.words([bytes(32)], count, CPU)
