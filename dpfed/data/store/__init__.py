"""Record stores: layout, reading, writing, sharding, and what can be damaged."""
