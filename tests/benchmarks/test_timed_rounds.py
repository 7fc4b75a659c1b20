"""What a benchmark watches from outside is still there under its name."""

from benchmarks.rounds import PARTS


def test_every_part_of_a_round_that_is_timed_exists():
    assert [part for part, (owner, name) in PARTS.items() if not callable(getattr(owner, name, None))] == []
