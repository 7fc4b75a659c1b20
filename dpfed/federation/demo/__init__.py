"""All parties of a federation on one machine, as processes of their own: `dpfed federation demo`."""
