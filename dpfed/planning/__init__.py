"""Predictions of a private run from public records, before any budget is spent: forecast and rehearsal."""
