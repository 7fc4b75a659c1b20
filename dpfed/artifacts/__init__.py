"""A run's directory and the data read from it: provenance, figures, spending, exports."""
