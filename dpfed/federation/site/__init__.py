"""A running institution: its worker, its ledger, and the local socket where requests arrive."""
