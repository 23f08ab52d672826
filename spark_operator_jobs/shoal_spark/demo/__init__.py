"""The demo pipeline: common parts of `make demo` and `shoal demo`, and the latter."""
