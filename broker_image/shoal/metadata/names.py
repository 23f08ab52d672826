"""Topic names: which are valid, which collide, which are internal."""

from __future__ import annotations

import re

NAME_SIZE_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
METADATA_TOPIC = "__cluster_metadata"
#: The directory of its only partition.
METADATA_LOG = f"{METADATA_TOPIC}-0"
#: Topics that brokers write; Metadata marks them as internal.
REMOTE_LOG_METADATA = "__remote_log_metadata"
INTERNAL_TOPICS = (
    "__consumer_offsets",
    REMOTE_LOG_METADATA,
    "__share_group_state",
    "__transaction_state",
)


def find_topic_name_error(name: str) -> str | None:
    """Return why `name` is not a valid topic name, or None."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_SIZE_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_SIZE_MAX}"
    if not _LEGAL.fullmatch(name):
        others = "characters other than ASCII alphanumerics, '.', '_' and '-'"
        return f"'{name}' contains one or more {others}"
    return None


def to_collision_key(name: str) -> str:
    """Return the key of names that collide: metrics cannot distinguish `.` from `_`."""
    return name.replace(".", "_")
