"""What groups of the heartbeat protocol have in common."""
