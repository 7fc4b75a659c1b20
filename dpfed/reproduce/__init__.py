"""Runs the experiments of the papers and compares our figures with the published ones."""
