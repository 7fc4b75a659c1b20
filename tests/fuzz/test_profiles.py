from __future__ import annotations

import time

import pytest

from dpfed.errors import UserError
from tests.fuzz.profiles import Hang, answer, answered_in_time


def test_a_hang_and_a_foreign_error_are_failures() -> None:
    with pytest.raises(Hang), answered_in_time(0.05):
        try:
            time.sleep(5)
        except Exception:  # what takes any error for a bad input does not hide a hang
            pytest.fail("swallowed")
    with pytest.raises(KeyError):
        answer(lambda: {}["a"])

    def refuse() -> None:
        raise UserError("no.")

    assert isinstance(answer(refuse), UserError)


def test_a_message_stays_short_and_keeps_what_to_do() -> None:
    error = UserError(f"unknown split {'[' * 100_000!r}; use 'train'.", f"unknown split {']' * 100_000}; use 'train'.")
    for text in (str(error), error.public):
        assert len(text) < 2100 and text.startswith("unknown split") and text.endswith("use 'train'.")
