"""Pretraining with many workers of one organisation, which run one privacy mechanism together.

The workers divide the groups of each step among themselves. If each record is a group of its own, or features of views are
cached, the workers divide the records instead.

This package has only the code that a cluster adds: the transport between processes, the launchers, and the commands
`dpfed cluster cost` and `dpfed cluster status`. The training step is the one in `dpfed.training`.
"""
