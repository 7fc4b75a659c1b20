"""Selects public words: names of things, which timm ships as the names of ImageNet's classes. They depend on no record."""

from __future__ import annotations

_NAMES = "imagenet12k"  # the list of timm that has the most names of common things


def public_words(count: int) -> list[str]:
    """Selects names such as ``rock climbing``, evenly spaced over timm's list.

    Args:
        count: Largest number of names.

    Returns:
        Different names, in the list's order; they depend on the version of timm.
    """
    from timm.data import ImageNetInfo

    info = ImageNetInfo(_NAMES)
    names = list(dict.fromkeys(info.index_to_description(index) for index in range(info.num_classes())))
    count = min(count, len(names))
    return [names[number * len(names) // count] for number in range(count)]
