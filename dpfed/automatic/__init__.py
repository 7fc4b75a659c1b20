"""Chooses everything but the data set and the epsilon, and says why (docs/automatic.md)."""
