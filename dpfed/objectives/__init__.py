"""The loss of one group."""
