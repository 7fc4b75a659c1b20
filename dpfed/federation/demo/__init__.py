"""All parties of a federation on one machine, each in processes of its own: `dpfed federation demo`."""
