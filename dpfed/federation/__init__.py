"""Federated pretraining: what the coordinator and the sites say to each other, whatever carries it."""
