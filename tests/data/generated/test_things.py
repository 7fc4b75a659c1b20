"""Public pictures and words that a basis is made of."""

import numpy as np

from dpfed.data.generated.things import picture, things_store
from dpfed.data.generated.words import public_words


def test_a_picture_follows_from_its_number():
    for number in range(12):
        drawn = picture(number, 32)
        assert drawn.shape == (32, 32, 3) and drawn.dtype == np.uint8
        np.testing.assert_array_equal(drawn, picture(number, 32))
        assert drawn.std() > 0 or number % 3 == 2  # a sign may be small, and off the middle


def test_objects_lie_on_white_and_leaves_fill_the_picture():
    white = [np.mean([(picture(3 * n + kind, 32) == 255).all(-1).mean() for n in range(20)]) for kind in (0, 1)]
    assert white[0] < 0.1 < 0.4 < white[1]


def test_words_differ_and_are_spread_over_the_list():
    words = public_words(300)
    assert len(set(words)) == 300 and words == public_words(300) and set(words) != set(public_words(301)[:300])
    assert len(public_words(10**6)) > 10_000


def test_a_store_of_them_is_public_and_has_a_word_for_each(tmp_path):
    store = things_store(20, tmp_path, 16)
    assert store.public and store.count("train") == 20
    assert sorted(captions[0] for captions in store.captions(store.split("train"))) == sorted(public_words(20))
