"""The names of topics and groups that stand for queues and exchanges."""

from __future__ import annotations

import re
import zlib

#: The compacted topic of bindings.
BINDINGS = "kombu.bindings"
#: The topic of an exchange that temporary queues read.
EXCHANGE_LOG = "kombu.exchange."
#: The name of the default exchange's log: its own is empty.
_DEFAULT = "default"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")
_LENGTH_MAX = 249


def make_topic_name(name: str, prefix: str = "") -> str:
    """Return the topic of a queue, which is its group too. A name that topics may not have gets a
    checksum in the place of what it loses."""
    topic = prefix + name
    legal = _ILLEGAL.sub("_", topic)
    if legal == topic and len(topic) <= _LENGTH_MAX and topic not in (".", ".."):
        return topic
    return f"{legal[: _LENGTH_MAX - 9]}-{zlib.crc32(topic.encode()):08x}"


def make_log_name(exchange: str, prefix: str = "") -> str:
    """Return the topic of an exchange."""
    return make_topic_name(EXCHANGE_LOG + (exchange or _DEFAULT), prefix)
