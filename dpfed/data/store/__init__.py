"""Record stores: layout, reading, writing, and what can be damaged."""
