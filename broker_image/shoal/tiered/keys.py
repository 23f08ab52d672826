"""Names of objects: `<cluster>/<topic>-<topic id>/<partition>/<base offset>-<segment id>.segment`,
and `manifest` in the same place.

Cluster id and topic id keep two clusters in one bucket apart, and a topic that was created again
under the name of a deleted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.uuids import format_uuid, parse_uuid

if TYPE_CHECKING:
    from uuid import UUID

_SUFFIX = ".segment"
_MANIFEST = "manifest"
_OFFSET_DIGITS = 20
#: Characters of an id in base64.
_ID_LENGTH = 22


def format_partition_prefix(cluster_id: str, topic: str, topic_id: UUID, partition: int) -> str:
    """Return the prefix of all objects of a partition, without a slash at its end."""
    return f"{cluster_id}/{topic}-{format_uuid(topic_id)}/{partition}"


def format_segment_key(prefix: str, base_offset: int, segment_id: UUID) -> str:
    """Return the key of a segment's object below the prefix of its partition."""
    return f"{prefix}/{base_offset:0{_OFFSET_DIGITS}d}-{format_uuid(segment_id)}{_SUFFIX}"


def format_manifest_key(prefix: str) -> str:
    """Return the key of the manifest of the partition with a prefix."""
    return f"{prefix}/{_MANIFEST}"


def parse_topic(prefix: str) -> tuple[str, UUID] | None:
    """Return name and id of the topic in a prefix `<cluster>/<topic>-<topic id>`, None if it is
    another name."""
    name = prefix.rstrip("/").rpartition("/")[2]
    topic, topic_id = name[: -_ID_LENGTH - 1], parse_uuid(name[-_ID_LENGTH:])
    if not topic or name[-_ID_LENGTH - 1] != "-" or topic_id is None:
        return None
    return topic, topic_id


def parse_segment_id(key: str) -> UUID | None:
    """Return the segment id in a key, None if it is not the key of a segment."""
    name = key.rpartition("/")[2]
    if not name.endswith(_SUFFIX) or name[_OFFSET_DIGITS : _OFFSET_DIGITS + 1] != "-":
        return None
    return parse_uuid(name[_OFFSET_DIGITS + 1 : -len(_SUFFIX)])
