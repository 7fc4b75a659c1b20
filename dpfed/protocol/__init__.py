"""What coordinator and sites agree on and say to each other, whatever carries it."""
