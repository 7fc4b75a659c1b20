"""Generated records: captioned shapes, procedural pictures, pictures with unrelated words, and scenes of labelled images."""
