"""Sockets, frames and requests: what a broker does for each connection."""
