"""Types of custom resources, for mypy: `tools/resource_types.py` generates the modules."""
