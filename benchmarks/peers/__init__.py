"""dpfed beside its peers, in one run: `python -m benchmarks.peers` (docs/results.md)."""
