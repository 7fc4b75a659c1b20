"""The error for arrays that cannot be used."""

from __future__ import annotations

from dpfed.errors import UserError


class ArrayError(UserError, ValueError, TypeError):
    """Raised for wrong input to an estimator; callers that expect scikit-learn's errors catch it as ``ValueError`` or
    ``TypeError``."""
