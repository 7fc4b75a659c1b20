"""Secure sums: masks that cancel, and secret shares with which the remaining sites remove the masks of a missing one."""
