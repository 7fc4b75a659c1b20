"""Makes views of stored images and captions. Views are the input of a model."""
