"""Share groups: delivery, membership, offsets, and the state of the share coordinator."""
