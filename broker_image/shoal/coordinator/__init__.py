"""Replicated state machines over internal topics: groups and share-group state.

Every shard follows `contract`: decisions change nothing, and replayed records change the shard.
"""
