"""Committed offsets, and the individual and ordered commits beyond them."""
