"""Types of responses, for mypy: `tools/response_types.py` generates the modules."""
