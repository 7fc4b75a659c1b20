"""Record stores: their files, reading and writing, and checks for damage."""
