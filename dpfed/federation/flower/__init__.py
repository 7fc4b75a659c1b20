"""What carries messages over Flower."""
