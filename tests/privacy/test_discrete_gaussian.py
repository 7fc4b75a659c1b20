"""The exact sampler, against probabilities that are computed from fractions, and by enumerating all that its coins can do."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from dpfed.privacy import discrete_gaussian as room
from dpfed.privacy.discrete_gaussian import Coins, discrete_gaussian
from dpfed.privacy.randomness import Randomness

DRAWS = 200_000


def coins(seed: int = 0) -> Coins:
    return Coins(Randomness.from_seed(seed).stream("test", 0))


def exponential(x: Fraction) -> Fraction:
    """exp(-x) to 60 digits, from its series: no floating point."""
    term, total = Fraction(1), Fraction(0)
    for n in range(1, 80 + 4 * math.ceil(x)):
        total += term
        term *= -x / n
    return total


def chi_square(drawn: np.ndarray, probabilities: dict[int, float]) -> float:
    """Deviations of the statistic from its mean; values that are expected less than 20 times are pooled."""
    counts, n = Counter(drawn.tolist()), len(drawn)
    expected = {value: p * n for value, p in probabilities.items() if p * n >= 20}
    pairs = [(counts[value], mean) for value, mean in expected.items()]
    rest = n - sum(expected.values())
    assert rest > -1e-6
    if rest >= 20:
        pairs.append((n - sum(count for count, _ in pairs), rest))
    statistic = sum((count - mean) ** 2 / mean for count, mean in pairs)
    return (statistic - len(pairs) + 1) / math.sqrt(2 * (len(pairs) - 1))


def gaussian(bits: int) -> dict[int, float]:
    """The distribution itself: exp(-z^2 / (2 m^2)) over its sum."""
    m = 2**bits
    weights = {z: exponential(Fraction(z * z, 2 * m * m)) for z in range(9 * m + 1)}
    total = 2 * sum(weights.values()) - weights[0]
    return {sign * z: float(weight / total) for z, weight in weights.items() for sign in (1, -1)}


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_draws_have_the_distribution(bits):
    """A sign too many for zero, a coin left out or thrown twice, or k cut off are dozens of deviations away."""
    assert chi_square(discrete_gaussian(coins(bits), DRAWS, bits), gaussian(bits)) < 5


def test_fine_draws_have_the_distribution_in_every_digit():
    drawn = discrete_gaussian(coins(), DRAWS)
    cells = [math.erf(cell / 8 / math.sqrt(2)) for cell in range(60)]
    coarse = {cell: cells[cell + 1] - cells[cell] for cell in range(len(cells) - 1)}
    assert chi_square(np.abs(drawn) >> (room.MOST_BITS - 3), coarse) < 5
    assert chi_square(drawn & 63, dict.fromkeys(range(64), 1 / 64)) < 5
    assert chi_square((drawn > 0).astype(int), {0: 1 / 2, 1: 1 / 2}) < 5


def test_draws_are_independent_of_each_other():
    drawn = discrete_gaussian(coins(), DRAWS)
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 5 / math.sqrt(DRAWS)
        assert abs(np.corrcoef(np.abs(drawn[:-lag]), np.abs(drawn[lag:]))[0, 1]) < 5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_the_same_stream_gives_as_many_of_the_same_draws(count):
    one, other = (discrete_gaussian(coins(4), count) for _ in range(2))
    assert len(one) == count and one.dtype == np.int64 and np.array_equal(one, other)
    if count > 1:
        assert not np.array_equal(one, discrete_gaussian(coins(5), count))


class Unknown(Exception):
    """A path that is too short: the faces of the next throw, each with its probability."""


class Path(Coins):
    """Throws what a path says."""

    def __init__(self, path: tuple[int, ...]) -> None:
        self._path = list(path)

    def _take(self, faces: list[tuple[int, Fraction]]) -> np.ndarray:
        if not self._path:
            raise Unknown(faces)
        return np.array([self._path.pop(0)])

    def uniform(self, count, bits):
        return self._take([(number, Fraction(1, 1 << bits)) for number in range(1 << bits)]).astype(np.uint64)

    def one_in(self, count, sides):
        return self._take([(1, Fraction(1, sides)), (0, 1 - Fraction(1, sides))]).astype(bool)


def probability_of_true(top: int, bits: int, throws: int) -> Fraction:
    """That `exponential` ends with True after so many throws at most: the sum over all ways there."""
    true, waiting = Fraction(0), [((), Fraction(1))]
    while waiting:
        path, chance = waiting.pop()
        try:
            if Path(path).exponential(np.array([top], dtype=np.uint64), bits)[0]:
                true += chance
        except Unknown as unknown:
            if len(path) < throws:
                waiting += [((*path, face), chance * p) for face, p in unknown.args[0]]
    return true


@pytest.mark.parametrize(("top", "bits"), [(0, 2), (1, 1), (1, 2), (3, 2), (2, 1)])
def test_an_exponential_coin_has_its_series_probability(top, bits):
    """Equal as fractions. It ends in round n with probability x^(n-1)/(n-1)! - x^n/n!, and with True if n is odd."""
    x = Fraction(top, 1 << bits)
    for rounds in (1, 2, 3, 4):
        ends = [x ** (n - 1) / math.factorial(n - 1) - x**n / math.factorial(n) for n in range(1, rounds + 1)]
        assert probability_of_true(top, bits, 2 * rounds - 1) == sum(ends[::2])  # one throw in the first, two in each other


@pytest.mark.parametrize("sides", [2, 3, 5, 7, 100, 256])
def test_equally_many_bytes_show_each_face(sides):
    asked: list[int] = []

    def stream(count: int) -> bytes:
        asked.append(count)
        return [bytes(range(256)), bytes([255] * count), bytes(count)][min(len(asked), 3) - 1]

    heads, many = Coins(stream).one_in(256, sides), 256 % sides
    assert heads[: 256 - many].sum() == 256 // sides
    assert asked == [256, many, many][: 3 if many else 1]  # 255 is one too many again, and then 0 is a head
    assert heads[256 - many :].all()


def test_cumulative_probabilities_are_those_of_fractions():
    weights = [exponential(Fraction(k * k, 2)) for k in range(25)]
    cuts = room._cumulative(128)
    for k, cut in enumerate(cuts, start=1):
        assert cut == int((1 << 128) * sum(weights[:k]) / sum(weights))
    assert cuts[-1] == (1 << 128) - 1 and len(cuts) > 12
    assert room._cumulative(64) == tuple(cut >> 64 for cut in cuts[: len(room._cumulative(64))])


def test_ties_with_a_probability_are_decided_by_more_digits(monkeypatch):
    """With two digits at a time nearly all numbers tie; the distribution stays."""
    monkeypatch.setattr(room, "_DIGITS", 2)
    resolved = []
    real = Coins._resolved
    monkeypatch.setattr(Coins, "_resolved", lambda self, number: resolved.append(number) or real(self, number))
    drawn = coins().deviations(20_000)
    weights = [float(exponential(Fraction(k * k, 2))) for k in range(12)]
    assert len(resolved) > 5_000
    assert chi_square(drawn, {k: weight / sum(weights) for k, weight in enumerate(weights)}) < 5


def test_coins_of_several_factors_must_all_succeed():
    times = np.repeat([0, 1, 2, 5], DRAWS)
    kept = coins().all_exponential(times, np.full(len(times), 3, dtype=np.uint64), 3)
    for n, share in zip([0, 1, 2, 5], kept.reshape(4, DRAWS).mean(1), strict=True):
        p = math.exp(-3 / 8 * n)
        assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / DRAWS)
