"""Builds the artifacts of a release: `make release VERSION=x` (docs/releasing.md)."""
