"""Private training: the worker that holds the records, the coordinator that adds the noise, and the loop between them."""
