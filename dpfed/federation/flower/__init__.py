"""Carries the messages of a federation over Flower."""
