"""Encoders, the contrastive models made of them, and the check that no model mixes records."""
