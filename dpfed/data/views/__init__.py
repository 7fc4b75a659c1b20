"""Makes views, the input of a model, of stored images and captions."""
