"""The coordinator of a federation: its folder, its rounds, and the sites that take part."""
