"""Random views of captions: what they keep, how often they change, and on what they depend."""

from collections import Counter

import numpy as np
import pytest

from dpfed.config import TextViewsConfig
from dpfed.data.views.texts import TextViews, sentences

SENTENCES = ["The man wears a red coat.", "He carries a bag.", "His shoes are brown.", "He looks around."]
CAPTION = " ".join(SENTENCES)
ALL = {"sentence_swap": 0.5, "word_swap": 0.3, "word_delete": 0.2}


def seeds(count, views=1, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (count, views), dtype=np.uint64, endpoint=False)


def many(caption, count=4000, **config):
    """`count` independent views of one caption."""
    return [views[0] for views in TextViews(TextViewsConfig(**config))([caption] * count, seeds(count))]


def rate(probability, count):
    """A tolerance of four standard deviations around a probability."""
    return pytest.approx(probability, abs=4 * (probability * (1 - probability) / count) ** 0.5 + 1e-9)


def test_everything_off_leaves_the_caption_as_it_is():
    odd = " two  spaces,\na new line. And a tail \n"
    views = TextViews(TextViewsConfig())
    assert not views.active
    assert views([odd, ""], seeds(2, 3)) == [[odd] * 3, [""] * 3]


@pytest.mark.parametrize("name", list(ALL))
def test_any_probability_makes_it_active(name):
    assert TextViews(TextViewsConfig(**{name: 0.1})).active


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The lumen was 8 mm x 3 mm. CT: computed tomography.", ["The lumen was 8 mm x 3 mm.", "CT: computed tomography."]),
        ("It is 3.5 mm wide! Is it? Yes.", ["It is 3.5 mm wide!", "Is it?", "Yes."]),
        ("A lesion of 8 mm. in the lung. End", ["A lesion of 8 mm. in the lung.", "End"]),
        ("See Fig. 2, e.g. Dr. Smith (approx. 3 mm). No. 4 too.", ["See Fig. 2, e.g. Dr. Smith (approx. 3 mm).", "No. 4 too."]),
        ("a man walks. he wears red. end", ["a man walks.", "he wears red.", "end"]),
        ('He said "go." She went.', ['He said "go."', "She went."]),
        ("The coat\nis red.\nThe bag is blue.\n", ["The coat\nis red.", "The bag is blue."]),
        ("FINDINGS\n \nnormal lungs.\r\n\r\nno effusion", ["FINDINGS", "normal lungs.", "no effusion"]),
        ("Wait... What?!", ["Wait...", "What?!"]),
        ("one sentence", ["one sentence"]),
        ("  \n", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_a_sentence_swap_takes_every_pair_with_its_probability():
    views = many(CAPTION, sentence_swap=0.5)
    pairs = Counter()
    for view in views:
        moved = tuple(i for i, (a, b) in enumerate(zip(sentences(view), SENTENCES, strict=True)) if a != b)
        if moved:
            first, second = moved
            assert sentences(view)[first] == SENTENCES[second] and sentences(view)[second] == SENTENCES[first]
        pairs[moved] += 1
    assert len(pairs) == 1 + 6
    assert pairs.pop(()) / len(views) == rate(0.5, len(views))
    assert all(count / len(views) == rate(0.5 / 6, len(views)) for count in pairs.values())


def test_word_swaps_exchange_neighbours_and_never_overlap():
    for view in many(" ".join(str(i) for i in range(12)), 500, word_swap=0.4):
        numbers = [int(word) for word in view.split()]
        assert sorted(numbers) == list(range(12))
        assert all(abs(word - place) <= 1 for place, word in enumerate(numbers))
        assert all(numbers[word] == place for place, word in enumerate(numbers))  # it is an exchange of pairs


def test_each_word_not_just_exchanged_swaps_with_the_probability():
    count, p, starts = 6000, 0.3, np.zeros(8)
    for view in many(" ".join(str(i) for i in range(9)), count, word_swap=p):
        numbers = [int(word) for word in view.split()]
        starts += [numbers[place] == place + 1 for place in range(8)]
    expected = [p]
    for _ in range(7):
        expected.append(p * (1 - expected[-1]))  # it can only start where the one before did not
    for place in range(8):
        assert starts[place] / count == rate(expected[place], count)


def test_each_word_drops_with_the_probability_others_in_order():
    count, p, kept = 6000, 0.2, np.zeros(20)
    for view in many(" ".join(str(i) for i in range(20)), count, word_delete=p):
        numbers = [int(word) for word in view.split()]
        assert numbers == sorted(set(numbers))
        kept[numbers] += 1
    # Of 20 words more than 10 are drawn once in 2,000 views: the skeleton hardly changes the rate.
    assert all(share == rate(1 - p, count) for share in kept / count)


@pytest.mark.parametrize(("words", "least"), [(1, 1), (2, 1), (3, 2), (4, 2), (9, 5)])
def test_at_least_half_of_the_words_stay_and_any_of_them_may_go(words, least):
    caption = " ".join(str(i) for i in range(words))
    views = many(caption, 400, word_delete=1.0)
    assert {len(view.split()) for view in views} == {least}
    if words > least:
        assert {word for view in views for word in view.split()} == set(caption.split())
        assert len(set(views)) > 1


def test_a_view_depends_on_its_own_caption_and_seed_only():
    views, some = TextViews(TextViewsConfig(**ALL)), seeds(6, 3)
    captions = [f"{CAPTION} Number {i}." for i in range(6)]
    whole = views(captions, some)
    assert views(captions, some) == whole
    assert TextViews(TextViewsConfig(**ALL))(captions[3:4], some[3:4]) == whole[3:4]
    assert views(captions[::-1], some[::-1]) == whole[::-1]
    assert [row[1:] for row in whole] == views(captions, some[:, 1:])
    assert len({view for row in whole for view in row}) > 15


def test_seeds_that_differ_in_one_bit_give_unrelated_views():
    neighbours = np.arange(2000, dtype=np.uint64)[:, None]
    views = TextViews(TextViewsConfig(sentence_swap=0.5))([CAPTION] * 2000, neighbours)
    assert np.mean([view == CAPTION for [view] in views]) == rate(0.5, 2000)
    high = np.uint64(1) << np.arange(64, dtype=np.uint64)
    assert len({view for [view] in TextViews(TextViewsConfig(**ALL))([CAPTION] * 64, high[:, None])}) > 50
