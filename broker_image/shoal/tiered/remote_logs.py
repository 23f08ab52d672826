"""The remote logs of many partitions, replayed from the records of `__remote_log_metadata`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.tiered.metadata_records import KEY_SIZE, RemoteLogSegmentMetadata, decode, parse_key
from shoal.tiered.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

#: A partition: topic id and partition number.
Key = tuple["UUID", int]


class RemoteLogs:
    """Owns a remote log for each partition that a record names, or that someone asks for."""

    def __init__(self) -> None:
        self._logs: dict[Key, RemoteLog] = {}
        #: Names of topics, which keys of objects have, also after their deletion.
        self.names: dict[UUID, str] = {}

    def __getitem__(self, key: Key) -> RemoteLog:
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = RemoteLog()
        return log

    def items(self) -> Iterator[tuple[Key, RemoteLog]]:
        yield from self._logs.items()

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record of the topic. Foreign records are ignored. Raises `WireError`."""
        if key is None or len(key) != KEY_SIZE:
            return
        if value is None:
            segment_key = parse_key(key)
            assert segment_key is not None
            topic_id, partition, segment_id = segment_key
            self[topic_id, partition].forget(segment_id)
            return
        record = decode(value)
        if record is None:
            return
        topic, topic_id, partition, _ = record.id
        if isinstance(record, RemoteLogSegmentMetadata):
            self.names[topic_id] = topic
        self[topic_id, partition].replay(record)
