"""Secure sums: masks that cancel, and secret shares with which the masks of a missing site can be removed."""
