"""Federated pretraining: the coordinator, the sites, secure sums, and what carries their messages."""
