"""Sets up a federation on its machines: one signed kit for each site, and the checks of a site."""
