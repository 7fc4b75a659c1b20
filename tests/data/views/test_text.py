"""The tokenizer: fixed numbers, everywhere and for ever."""

import torch

from dpfed.data.views.words import WordTokenizer


def test_numbers_never_change():
    """A trained model depends on them, on any machine: if this fails, every saved text tower is broken."""
    assert WordTokenizer(1024, 4)(["a red circle"]).tolist() == [[831, 926, 888, 0]]


def test_case_and_punctuation_do_not_matter():
    tokenizer = WordTokenizer(1024, 4)
    assert torch.equal(tokenizer(["Grüße, blue sky!"]), tokenizer(["grüße blue SKY"]))


def test_shape_padding_and_range():
    texts = ["", "one", "one two three four five six", "?!"]
    tokens = WordTokenizer(64, 4)(texts)
    assert tokens.shape == (4, 4) and tokens.dtype == torch.int64
    assert (tokens != 0).sum(1).tolist() == [0, 1, 4, 0]
    assert tokens.max() < 64
