"""What is spent: accounting and the ledger."""
