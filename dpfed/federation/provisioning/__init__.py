"""Puts a federation onto its machines: one signed kit for each participant, and the checks of a site."""
