"""What every command line of the project shares: how it ends, and what it shows."""
