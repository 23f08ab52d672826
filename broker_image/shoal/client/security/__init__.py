"""How a client authenticates, and how it checks the broker."""
