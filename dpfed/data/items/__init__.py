"""Records of any map-style data set. Several processes read its items and make their views."""
