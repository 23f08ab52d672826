"""Authentication and authorization without I/O: time, nonces and files are arguments."""
