"""Chooses every setting except the data set and epsilon, and explains each choice (docs/automatic.md)."""
