"""What gets a federation onto its machines: one signed kit for each participant, and what checks it there."""
