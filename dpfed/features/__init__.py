"""Features of frozen towers: computed once for each record, kept beside the records, and trained on in place of images."""
