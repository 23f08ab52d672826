"""Client quotas and the rates that they bound."""
