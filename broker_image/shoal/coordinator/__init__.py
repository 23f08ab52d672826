"""Replicated state machines over internal topics: groups and share-group state.

Every shard has the one shape of `contract`: it decides without changing, and changes by replaying.
"""
