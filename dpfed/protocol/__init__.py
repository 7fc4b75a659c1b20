"""The protocol of a federation: terms, identities, signed messages and the journal, independent of what carries them."""
