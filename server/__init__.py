"""The Flower app of the coordinator, and what its operator needs: certificates, a proxy recipe, a federation on one machine."""
