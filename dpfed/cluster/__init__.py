"""Pretraining with many workers of one organisation. All workers run one privacy mechanism, each on its part of the records.

This package has only the code that a cluster adds: the transport between processes, the launchers, and the estimate of costs.
The training step is the one in `dpfed.training`.
"""
