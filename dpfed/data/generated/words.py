"""Public words: names of things, as timm ships them with ImageNet's classes. They were chosen without a look at any record."""

from __future__ import annotations

_NAMES = "imagenet12k"  # the list of timm that has the most names of common things


def public_words(count: int) -> list[str]:
    """Names such as ``rock climbing``, evenly spread over all that there are.

    Args:
        count: at most so many.

    Returns:
        Different names, in the order of the list: a function of the version of timm.
    """
    from timm.data import ImageNetInfo

    info = ImageNetInfo(_NAMES)
    names = list(dict.fromkeys(info.index_to_description(index) for index in range(info.num_classes())))
    count = min(count, len(names))
    return [names[number * len(names) // count] for number in range(count)]
