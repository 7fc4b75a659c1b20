"""The privacy mechanism as data: plan, samplers, noise, accounting, ledger and secret randomness."""
