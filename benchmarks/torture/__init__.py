"""Faults done on purpose: whatever dies or breaks, a run must end like one that nobody disturbed (docs/a-site-in-15-minutes.md)."""
