"""What a user is told before the first step: what images lose on their way, and what a loss has too little of."""

import pytest

from dpfed.config import parse_config
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.assembly import assemble
from dpfed.runs.job import say_what_is_trained
from dpfed.runs.resolution import resolve


class Notes(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def told(tree):
    notes = Notes()
    say_what_is_trained(assemble(resolve(parse_config(tree)), Randomness.fresh()), notes)
    return notes.said


def test_squares_of_another_size_are_named(tiny, tiny_public):
    said = "are scaled from the store's squares of 32 pixels to 16 (data.size)"
    assert [line for line in told(tiny) if "scaled" in line] == [f"images {said}"]
    assert [line for line in told(tiny_public) if "scaled" in line] == [f"images {said}", f"public images {said}"]
    tiny["data"]["size"] = 32
    assert not [line for line in told(tiny) if "pixels" in line]


@pytest.mark.parametrize(
    ("changes", "few"),
    [
        (
            {"objective": {"name": "barlow_twins"}},
            "'barlow_twins' .* 4 are too few for that: groups of 16 or more .* .bounding.group_size",
        ),
        ({"objective": {"name": "barlow_twins"}, "bounding": {"group_size": 16, "engine": "loop"}}, None),
        ({"objective": {"name": "infonce"}}, None),
        (
            {"objective": {"name": "barlow_twins"}, "bounding": {"method": "public"}},
            "4 are too few for that: .* .public.records",
        ),
    ],
)
def test_a_loss_of_statistics_says_that_its_groups_are_small(tiny, tiny_public, changes, few):
    public = changes.get("bounding", {}).get("method") == "public"
    said = "\n".join(told({**(tiny_public if public else tiny), **changes}))
    import re

    assert bool(re.search(few or "are too few for that", said)) == bool(few)
