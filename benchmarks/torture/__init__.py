"""Injects faults: whatever dies or breaks, a run must end like an undisturbed run (docs/a-site-in-15-minutes.md)."""
