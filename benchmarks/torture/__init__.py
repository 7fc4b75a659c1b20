"""Faults done on purpose: whatever dies or breaks, a run ends like an undisturbed one: docs/a-site-in-15-minutes.md."""
