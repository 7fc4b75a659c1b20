"""From stored images and captions to the views that a model sees."""
