"""Records: produce, fetch, list offsets, delete."""
