"""The coordinator of a federation: rounds, and its journal."""
