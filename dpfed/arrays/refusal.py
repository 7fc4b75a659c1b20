"""The error for arrays that cannot be used."""

from __future__ import annotations

from dpfed.errors import UserError


class ArrayError(UserError, ValueError, TypeError):
    """Raised for wrong input to an estimator. Like scikit-learn's own errors, it is a ``ValueError`` and a ``TypeError``."""
