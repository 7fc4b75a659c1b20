"""Arithmetic in GF(2^128), on arrays: the field that secrets are shared in.

An element is a polynomial over GF(2) of degree below 128, modulo x^128 + x^7 + x^2 + x + 1. In an array it is two uint64, the
lower one first, so bit k of the element is the coefficient of x^k.
"""

from __future__ import annotations

import numpy as np

BYTES = 16  # of an element
_BITS = 128
_MODULUS = (1 << _BITS) | 0b10000111
_TAIL = np.uint64(0b10000111)  # what x^128 is equal to
_ONE, _TOP = np.uint64(1), np.uint64(63)


def from_bytes(content: bytes) -> np.ndarray:
    """Elements of 16 bytes each, the most significant one first, as ``(n, 2)`` uint64."""
    return np.frombuffer(content, ">u8").reshape(-1, 2)[:, ::-1].astype(np.uint64)


def to_bytes(elements: np.ndarray) -> bytes:
    """The inverse of `from_bytes`, for ``(..., 2)`` uint64."""
    return np.ascontiguousarray(elements[..., ::-1]).astype(">u8").tobytes()


def shifted(elements: np.ndarray) -> np.ndarray:
    """Elements ``(..., 2)`` times x."""
    low, high = elements[..., 0], elements[..., 1]
    carried = np.empty_like(elements)
    carried[..., 0] = (low << _ONE) ^ ((high >> _TOP) * _TAIL)
    carried[..., 1] = (high << _ONE) | (low >> _TOP)
    return carried


def scaled(elements: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Elements ``(..., 2)`` times small factors, such as the numbers of sites.

    Args:
        elements: ``(..., 2)`` uint64.
        factors: uint64 that spread over the elements' shape; the time grows with the bits of the largest one.
    """
    total, power = np.zeros(np.broadcast_shapes(elements.shape, (*factors.shape, 2)), np.uint64), elements
    for bit in range(int(factors.max(initial=0)).bit_length()):
        total ^= power * ((factors >> np.uint64(bit)) & _ONE)[..., None]
        power = shifted(power)
    return total


def combined(weights: list[int], elements: np.ndarray) -> np.ndarray:
    """The sum of weights times elements: one sum for each column.

    Args:
        weights: ``g`` elements, as integers.
        elements: ``(g, n, 2)`` uint64.

    Returns:
        ``(n, 2)`` uint64.
    """
    bits = np.array([[weight >> bit & 1 for bit in range(_BITS)] for weight in weights], bool)
    total = np.zeros(elements.shape[1:], np.uint64)
    for bit in reversed(range(_BITS)):  # Horner's scheme in x
        total = shifted(total) ^ np.bitwise_xor.reduce(elements[bits[:, bit]], axis=0)
    return total


def product(one: int, other: int) -> int:
    """The product of two elements, as integers."""
    result = 0
    while other:
        low = other & -other
        result ^= one * low  # a power of two: a shift
        other ^= low
    for bit in range(result.bit_length() - 1, _BITS - 1, -1):
        if result >> bit & 1:
            result ^= _MODULUS << (bit - _BITS)
    return result


def inverse(element: int) -> int:
    """What an element other than 0 must be multiplied with to give 1, by Euclid's algorithm."""
    rest, value, other_rest, other_value = _MODULUS, 0, element, 1
    while other_rest != 1:
        shift = rest.bit_length() - other_rest.bit_length()
        if shift < 0:
            rest, value, other_rest, other_value = other_rest, other_value, rest, value
            shift = -shift
        rest ^= other_rest << shift
        value ^= other_value << shift
        if rest == 1:
            return value
    return other_value
