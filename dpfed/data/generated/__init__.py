"""Records that are generated: captioned shapes, and scenes of given images."""
