"""Tiered storage on the event loop: the object store, and what copies, reads and deletes there."""
