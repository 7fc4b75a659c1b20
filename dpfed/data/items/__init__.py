"""Records from any map-style data set, read and augmented in processes."""
