"""Measurements that anyone can repeat; the results are in `benchmarks/results/`."""
