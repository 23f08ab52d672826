"""Group and transaction coordinators of this broker."""
