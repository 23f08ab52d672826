"""How far the groups of a queue are: lag, gaps, held keys, owners, and positions to reset."""
