"""Encoders, the contrastive models made of them, and the check that they keep records apart."""
