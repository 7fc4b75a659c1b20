"""The sentence for arrays that cannot be used, as scikit-learn's callers expect it."""

from __future__ import annotations

from dpfed.errors import UserError


class ArrayError(UserError, ValueError, TypeError):
    """A `UserError` about what was given to an estimator: also a ``ValueError`` and a ``TypeError``, which callers of
    scikit-learn's estimators catch."""
