"""Contains the privacy mechanism: plan, samplers, noise, accounting, ledger and secret randomness."""
