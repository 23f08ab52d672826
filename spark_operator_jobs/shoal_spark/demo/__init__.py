"""The pipeline to look at: what `make demo` and `shoal demo` share, and the latter itself."""
