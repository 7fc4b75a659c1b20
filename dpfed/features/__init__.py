"""Features of frozen towers. They are computed once for each record, kept beside the records, and read in training."""
