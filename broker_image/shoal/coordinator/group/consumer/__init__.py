"""Consumer groups that the broker assigns (KIP-848)."""
