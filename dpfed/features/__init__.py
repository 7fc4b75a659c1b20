"""Features of frozen towers: computed once for each record, kept at its owner's place, and trained on in place of images."""
