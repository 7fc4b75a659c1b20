"""The error for arrays that cannot be used."""

from __future__ import annotations

from dpfed.errors import UserError


class ArrayError(UserError, ValueError, TypeError):
    """Raised for wrong input to an estimator; scikit-learn's callers catch it as a ``ValueError`` or a ``TypeError``."""
