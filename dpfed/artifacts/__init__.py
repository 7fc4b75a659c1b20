"""What lies in a run's directory, and what is read from it: provenance, figures, spending, exports."""
