"""Secure sums: masks that cancel, and shares with which the sites that are left take out the masks of one that is gone."""
