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


def test_padding_is_never_a_word():
    words = " ".join(f"word{i}" for i in range(2000))
    tokens = WordTokenizer(7, 2000)([words])
    assert sorted(set(tokens.flatten().tolist())) == [1, 2, 3, 4, 5, 6]


def test_truncated_texts_are_counted():
    assert WordTokenizer(64, 3).truncated(["a b c", "a b c d", "", "a, b, c, d"]) == 2


def test_no_texts():
    assert WordTokenizer(64, 3)([]).shape == (0, 3)
