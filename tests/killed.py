"""A process that ends in the middle of its work."""

import contextlib
import itertools

import pytest


class Killed(BaseException):
    """Stands for the process ending right here: nothing is allowed to catch it."""


@contextlib.contextmanager
def killed(owner, method, at=1, before=True, error=Killed):
    """The block ends in the `at`-th call of a method, before or after it did its work."""
    real, calls = getattr(owner, method), itertools.count(1)

    def wrapped(*args, **kwargs):
        ends = next(calls) == at
        if ends and before:
            raise error
        result = real(*args, **kwargs)
        if ends:
            raise error
        return result

    with pytest.MonkeyPatch.context() as patch, pytest.raises(error):
        patch.setattr(owner, method, wrapped)
        yield
