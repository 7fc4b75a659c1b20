"""Converts captions to token numbers, without learning anything from the captions."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import torch

_WORD = re.compile(r"\w+")


class WordTokenizer:
    """Gives each word a token number from 1 to `vocabulary` - 1 by a fixed hash.

    The hash is a public function: nothing is fitted to data. A vocabulary that is made from private captions, by counting words
    or merging letters (BPE), would reveal something about the captions that no noise hides: if a rare name had a token of its
    own, the vocabulary would show that somebody wrote this name. Words with the same number have the same embedding; the larger
    `vocabulary` is, the rarer such words are.

    Args:
        vocabulary: Number of different token numbers, including 0 for padding.
        context: Number of words of a text that are read; the rest of a text is cut off.

    Raises:
        ValueError: If `vocabulary` is below 2, or `context` below 1.
    """

    def __init__(self, vocabulary: int, context: int) -> None:
        if vocabulary < 2 or context < 1:
            raise ValueError(f"expected vocabulary >= 2 and context >= 1, got {vocabulary} and {context}")
        self.vocabulary = vocabulary
        self.context = context

    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Returns the token numbers of texts.

        Args:
            texts: Texts, a list of n.

        Returns:
            The token numbers, ``(n, context)`` int64, padded with 0 on the right.
        """
        tokens = torch.zeros(len(texts), self.context, dtype=torch.int64)
        rows = tokens.numpy()
        for row, text in zip(rows, texts, strict=True):
            numbers = [_bucket(word, self.vocabulary) for word in _WORD.findall(text.lower())[: self.context]]
            row[: len(numbers)] = numbers
        return tokens


@lru_cache(maxsize=1 << 16)
def _bucket(word: str, vocabulary: int) -> int:
    # blake2b, because Python's own hash() differs from process to process.
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)
