"""A run from beginning to end: what is refused first, how it is assembled, carried out and resumed."""
