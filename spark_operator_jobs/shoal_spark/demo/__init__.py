"""The demo pipeline: common parts of `make demo-kubernetes` and `shoal demo`, and the latter."""
