"""Groups of every kind but share groups: membership, descriptions, committed offsets."""
