"""What a model is told that the rules do not cover."""

from dpfed.errors import UserError


class Unsupported(UserError):
    """A trainable parameter is used in a way that no rule covers. Says nothing about the records.

    Args:
        what: the use.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"bounding.engine = 'layerwise' does not fit this model ({what}): choose 'loop' or 'auto'.")
