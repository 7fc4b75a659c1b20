"""A running institution: its worker, its ledgers, and the local socket where questions come in."""
