"""Data owner, coordinator, and the loop that joins them."""
