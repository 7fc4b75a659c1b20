"""A run's directory, and what is read or made from it: provenance, figures, spending, exports."""
