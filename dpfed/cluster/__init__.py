"""Pretraining with many workers of one organisation: one mechanism, and each worker has its part of the records.

Only what a cluster adds lives here: the transport between processes, the launcher, the deployment files. The training step is
the one in `dpfed.training`.
"""
