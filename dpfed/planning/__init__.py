"""What a plan would give, asked of public records before any budget is spent."""
