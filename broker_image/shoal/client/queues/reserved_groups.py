"""The groups that the tools use themselves: `redrive.TOPIC` lets one redrive of a topic run at a
time. Lists leave these groups out, and commands refuse them for the work of others.

Brokers accept these names, since they do not know which client joins.
"""

from __future__ import annotations

REDRIVE_PREFIX = "redrive."


def get_redrive_group(topic: str) -> str:
    """Return the consumer group of the redrives of a dead-letter topic."""
    return REDRIVE_PREFIX + topic


def is_reserved(group: str) -> bool:
    """Return whether a group belongs to the tools."""
    return group.startswith(REDRIVE_PREFIX)


def format_refusal(group: str) -> str:
    """Return the sentence for somebody who wants to use a reserved group."""
    return (
        f"group {group} is reserved: shoal dlq redrive uses the names that begin with"
        f" {REDRIVE_PREFIX} to run alone. Choose another name"
    )
