"""One data directory: its identity, its lock, its checkpoints, and the logs in it.

A log lives in `<topic>-<partition>`, with the topic's id in `partition.metadata`. To delete a log,
its directory is renamed to `<topic>-<partition>.<number>-delete`, atomically, and removed later.
Files and formats are Kafka's: `meta.properties`, `.lock`, `.kafka_cleanshutdown`, and the offset
checkpoints for recovery points, log start offsets, high watermarks and cleaned offsets.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.log import restore_mark
from shoal.log.checkpoints import (
    read_offsets,
    read_partition_metadata,
    read_properties,
    write_offsets,
    write_partition_metadata,
    write_properties,
)
from shoal.log.errors import DirectoryInUse
from shoal.log.log import Log
from shoal.log.uuids import uuid_from_text, uuid_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.log.config import LogConfig
    from shoal.log.storage import File, Storage

META = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
DELETE_SUFFIX = "-delete"
#: A directory name is topic, "-" and partition; file systems allow 255 bytes.
_NAME_MAX = 255

Partition = tuple[str, int]


class LogDirectory:
    """The logs of one data directory, by (topic, partition)."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self.path = path
        self.logs: dict[Partition, Log] = {}
        self.topic_ids: dict[Partition, UUID] = {}
        #: Whether the last shutdown was clean.
        self.clean = False
        #: The broker epoch before that shutdown; -1 if it is unknown or the shutdown was not clean.
        self.stopped_epoch = -1
        #: The current broker epoch, which a clean shutdown records.
        self.broker_epoch = -1
        self.cluster_id = ""
        self.node_id = -1
        self.directory_id = UUID(int=0)
        #: The high watermarks of the last checkpoint; the broker updates them before the next one.
        self.high_watermarks: dict[Partition, int] = {}
        self._lock: File | None = None
        self._recovery_points: dict[Partition, int] = {}
        #: The recovery points in the checkpoint file.
        self._checkpointed: dict[Partition, int] = {}
        self._log_starts: dict[Partition, int] = {}
        self._cleaned: dict[Partition, int] = {}
        self._deleted = 0

    def open(
        self,
        *,
        cluster_id: str,
        node_id: int,
        directory_id: UUID,
        its_cluster: bool = False,
        restores: bool = False,
    ) -> None:
        """Lock the directory and read its identity. A new directory gets these ids.

        With `its_cluster`, a directory of another cluster is refused. Only a restore, which sets
        `restores`, opens a directory with an unfinished restore. Raises `DirectoryInUse` before
        anything is written to a directory of another broker.
        """
        mark = restore_mark.read(self.storage, self.path)
        if mark is not None and not mark.complete and not restores:
            raise DirectoryInUse(
                f"{self.path} has an unfinished restore: empty the directory, and repeat `shoal"
                " storage restore`"
            )
        self.storage.make_directory(self.path)
        try:
            self._lock = self.storage.lock(self._file(LOCK))
        except BlockingIOError:
            raise DirectoryInUse(
                f"{self.path} is in use by another broker: stop it, or choose another --data-dir"
            ) from None
        known = read_properties(self.storage, self._file(META))
        if known is None:
            known = {
                "version": "1",
                "cluster.id": cluster_id,
                "node.id": str(node_id),
                "directory.id": uuid_text(directory_id),
            }
            write_properties(self.storage, self._file(META), known)
        self._adopt(known, node_id, cluster_id if its_cluster else None)
        self.clean = self.storage.exists(self._file(CLEAN_SHUTDOWN))
        if self.clean:
            self.stopped_epoch = _stopped_epoch(self.storage.read_file(self._file(CLEAN_SHUTDOWN)))
        self._recovery_points = read_offsets(self.storage, self._file(RECOVERY_POINTS))
        self._checkpointed = dict(self._recovery_points)
        self._log_starts = read_offsets(self.storage, self._file(LOG_STARTS))
        self.high_watermarks = read_offsets(self.storage, self._file(HIGH_WATERMARKS))
        self._cleaned = read_offsets(self.storage, self._file(CLEANED_OFFSETS))

    def identity(self) -> Mapping[str, str] | None:
        """Return `meta.properties`, also before the directory is opened; None without the file."""
        return read_properties(self.storage, self._file(META))

    def note(self, name: str, value: str) -> None:
        """Write a property to `meta.properties`. Raises `OSError`."""
        known = dict(self.identity() or {})
        if known.get(name) != value:
            write_properties(self.storage, self._file(META), {**known, name: value})

    def _adopt(self, known: Mapping[str, str], node_id: int, cluster_id: str | None) -> None:
        if cluster_id is not None and known.get("cluster.id") != cluster_id:
            self.unlock()
            raise DirectoryInUse(
                f"{self.path} has data of cluster {known.get('cluster.id')}, and this node is to be"
                f" part of cluster {cluster_id}: give it the directory that is its own by"
                " --data-dir, or the other cluster's id by --cluster-id"
            )
        version = known.get("version", "")
        if version.isdigit() and int(version) > 1:
            self.unlock()
            raise DirectoryInUse(
                f"{self.path} is of a newer format (meta.properties version {version}) than this"
                " release reads: run the release that wrote it, or a later one"
            )
        if version != "1" or known.get("node.id") != str(node_id):
            self.unlock()
            raise DirectoryInUse(
                f"{self.path} belongs to node {known.get('node.id')} (meta.properties version "
                f"{known.get('version')}), and this is node {node_id}"
            )
        self.cluster_id = known.get("cluster.id", "")
        self.node_id = node_id
        self.directory_id = uuid_from_text(known.get("directory.id", "")) or UUID(int=0)

    def found(self) -> Iterator[tuple[Partition, UUID | None]]:
        """Return the partitions that have a directory here, with their topic ids, by name."""
        for name in self.storage.names(self.path):
            topic, dash, index = name.rpartition("-")
            directory = self._file(name)
            if not (dash and topic and index.isdigit() and self.storage.is_directory(directory)):
                continue
            topic_id = read_partition_metadata(self.storage, f"{directory}/{PARTITION_METADATA}")
            yield (topic, int(index)), uuid_from_text(topic_id) if topic_id else None

    def started(self) -> None:
        """Note the start, before anything is written to a log. From now on only `close` makes a
        shutdown clean. `clean` still describes the last shutdown, for logs opened later. No
        restore may replace the data any more."""
        restore_mark.remove(self.storage, self.path)
        self.storage.remove(self._file(CLEAN_SHUTDOWN))
        self.storage.sync_directory(self.path)

    def open_log(
        self, topic: str, index: int, config: LogConfig, *, now_ms: int, topic_id: UUID | None
    ) -> Log:
        """Open the log of a partition, or create it. Raises `OSError`."""
        partition = (topic, index)
        if partition in self.logs:
            return self.logs[partition]
        directory = self._file(f"{topic}-{index}")
        fresh = not self.storage.exists(directory)
        if fresh and self._checkpointed.get(partition):
            # The recovery point of a deleted log of the same name must not apply to this one.
            self._write_recovery_points()
        log = Log.open(
            self.storage,
            directory,
            config,
            now_ms=now_ms,
            clean=self.clean and not fresh,
            recovery_point=self._recovery_points.get(partition, 0),
            log_start_offset=self._log_starts.get(partition, 0),
            cleaned_to=self._cleaned.get(partition, 0),
        )
        if topic_id is not None and fresh:
            # The first sync of records makes it durable, so that many partitions are created fast.
            metadata = f"{directory}/{PARTITION_METADATA}"
            write_partition_metadata(self.storage, metadata, uuid_text(topic_id))
            log.owed_paths.append(metadata)
            log.owed_names.append(self.path)
        self.logs[partition] = log
        if topic_id is not None:
            self.topic_ids[partition] = topic_id
        return log

    def delete_log(self, topic: str, index: int) -> str | None:
        """Take a partition's log out of service. Return the path that `purge` removes after
        file.delete.delay.ms, or None if there is no such log. Raises `OSError`."""
        partition = (topic, index)
        log = self.logs.pop(partition, None)
        self.topic_ids.pop(partition, None)
        for known in (self._recovery_points, self.high_watermarks, self._cleaned):
            known.pop(partition, None)
        if self._log_starts.pop(partition, 0):
            # Before the files go: a log of the same name must not start there, even after a crash.
            self._write_log_starts()
        directory = self._file(f"{topic}-{index}")
        if log is None and not self.storage.exists(directory):
            return None
        if log is not None:
            log.offline = True
            for segment in log.segments:
                segment.release()
        while self.storage.exists(staged := self._staged(topic, index)):
            self._deleted += 1
        self.storage.rename(directory, staged)
        self._deleted += 1
        return staged

    def _staged(self, topic: str, index: int) -> str:
        tail = f"-{index}.{self._deleted:032x}{DELETE_SUFFIX}"
        return self._file(topic[: _NAME_MAX - len(tail)] + tail)

    def purge(self, staged: str) -> None:
        """Remove a directory that `delete_log` staged. May run in another thread."""
        self.storage.remove_directory(staged)

    def staged_deletes(self) -> list[str]:
        """Return the directories that earlier runs staged and did not remove."""
        names = self.storage.names(self.path)
        return [self._file(name) for name in names if name.endswith(DELETE_SUFFIX)]

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets, high watermarks and cleaned offsets.

        Raises `OSError`, and then the previous checkpoints stay.
        """
        logs = self.logs
        self._recovery_points |= {p: log.recovery_point for p, log in logs.items()}
        self._log_starts |= {p: log.log_start_offset for p, log in logs.items()}
        self._cleaned |= {p: log.cleaned_to for p, log in logs.items() if log.config.compact}
        self._write_recovery_points()
        self._write_log_starts()
        write_offsets(self.storage, self._file(HIGH_WATERMARKS), self.high_watermarks)
        write_offsets(self.storage, self._file(CLEANED_OFFSETS), self._cleaned)

    def checkpoint_log_starts(self) -> None:
        """Write the log start offsets only; DeleteRecords needs them before its response."""
        self._log_starts |= {p: log.log_start_offset for p, log in self.logs.items()}
        self._write_log_starts()

    def _write_recovery_points(self) -> None:
        write_offsets(self.storage, self._file(RECOVERY_POINTS), self._recovery_points)
        self._checkpointed = dict(self._recovery_points)

    def _write_log_starts(self) -> None:
        starts = {p: at for p, at in self._log_starts.items() if at > 0}
        write_offsets(self.storage, self._file(LOG_STARTS), starts)

    def close(self) -> None:
        """Close all logs, and mark the shutdown as clean unless a log failed. Raises `OSError` if
        the checkpoints cannot be written."""
        whole = True
        synced: set[str] = set()
        for log in self.logs.values():
            try:
                if log.offline:
                    whole = False
                else:
                    log.close(synced)
            except OSError:
                whole = False
        self.checkpoint()
        if whole:
            marker = json.dumps({"version": 0, "brokerEpoch": self.broker_epoch})
            self.storage.replace_file(self._file(CLEAN_SHUTDOWN), marker.encode(), sync=True)
        self.logs.clear()
        self.unlock()

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"


def _stopped_epoch(marker: bytes) -> int:
    try:
        return int(json.loads(marker).get("brokerEpoch", -1))
    except (ValueError, AttributeError):
        return -1
