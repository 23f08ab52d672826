"""QueueRebalances: plan, proposal and steps."""
