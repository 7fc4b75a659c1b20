"""A run from beginning to end: its first checks, its assembly, its steps, and its resumption."""
