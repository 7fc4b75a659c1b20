"""Runs the experiments of the papers and puts our figures beside theirs."""
