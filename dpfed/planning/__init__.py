"""Predicts a private run from public records, by a forecast or a rehearsal, before any privacy budget is spent."""
