"""One data directory: its identity, its lock, its checkpoints, and the logs in it.

A log lives in `<topic>-<partition>`, with the topic's id in `partition.metadata`. To delete a log,
its directory is renamed to `<topic>-<partition>.<number>-delete`, atomically, and removed later. A
log that the metadata does not know is renamed to `<topic>-<partition>.<number>-stray`, and kept:
the number is the time of that.
Files and formats are Kafka's: `meta.properties`, `.lock`, `.kafka_cleanshutdown`, and the offset
checkpoints for recovery points, log start offsets, high watermarks and cleaned offsets.
"""

from __future__ import annotations

import contextlib
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
from shoal.log.errors import CorruptLog, DirectoryInUse
from shoal.log.log import Log
from shoal.log.segment import LOG
from shoal.log.uuids import format_uuid, parse_uuid
from shoal.record.dedup_ids import fix_salt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

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
#: The secret of the digests in files of ids (`dedup_file`), which is our own.
ID_SALT = ".id-salt"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
#: The contents of `meta.properties`, for people.
_IDENTITY_LINES = (
    'the lines "version=1", "node.id=" with the id of this node, "cluster.id=" with the id in this'
    ' file of the other nodes, and for a voter "directory.id=" with the id that'
    " `kafka-metadata-quorum.sh describe --replication` shows. Nothing was changed."
)
#: A directory name is topic, "-" and partition; file systems allow 255 bytes.
_NAME_MAX = 255

Partition = tuple[str, int]


class LogDirectory:
    """The logs of one data directory, by (topic, partition)."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self.path = path
        self.logs: dict[Partition, Log] = {}
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
        #: Whether `open` has found no identity and given it one.
        self.is_new = False
        self._lock: File | None = None
        self._recovery_points: dict[Partition, int] = {}
        self._log_starts: dict[Partition, int] = {}
        #: The recovery points and the log start offsets in the checkpoint files.
        self._checkpointed: dict[Partition, int] = {}
        self._checkpointed_starts: dict[Partition, int] = {}
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
        first_log: str = "",
    ) -> None:
        """Lock the directory and read its identity. A new directory gets these ids.

        With `its_cluster`, a directory of another cluster is refused. Only a restore, which sets
        `restores`, opens a directory with an unfinished restore. A new directory has the directory
        `first_log` before its identity, so that its later absence shows a loss. Raises
        `DirectoryInUse` before anything is written to a directory of another broker, and
        `CorruptLog` if the identity is damaged, or is missing beside data.
        """
        mark = restore_mark.read(self.storage, self.path)
        if mark is not None and not mark.complete and not restores:
            raise DirectoryInUse(
                f"{self.path} has an unfinished restore: empty the directory, and repeat `shoal"
                " storage restore`"
            )
        self.storage.make_directory(self.path)
        try:
            self._lock = self.storage.lock(self._to_path(LOCK))
        except BlockingIOError:
            raise DirectoryInUse(
                f"{self.path} is in use by another broker: stop it, or choose another --data-dir"
            ) from None
        properties = self._read_identity()
        if properties is None:
            self.is_new = True
            if first_log:
                self.storage.make_directory(self._to_path(first_log))
                self.storage.sync_directory(self.path)
            properties = {
                "version": "1",
                "cluster.id": cluster_id,
                "node.id": str(node_id),
                "directory.id": format_uuid(directory_id),
            }
            write_properties(self.storage, self._to_path(META), properties)
        self._adopt(properties, node_id, cluster_id if its_cluster else None)
        self._fix_salt()
        self.clean = self.storage.exists(self._to_path(CLEAN_SHUTDOWN))
        if self.clean:
            self.stopped_epoch = _parse_stopped_epoch(
                self.storage.read_file(self._to_path(CLEAN_SHUTDOWN))
            )
        self._recovery_points = read_offsets(self.storage, self._to_path(RECOVERY_POINTS))
        self._checkpointed = dict(self._recovery_points)
        self._log_starts = read_offsets(self.storage, self._to_path(LOG_STARTS))
        self._checkpointed_starts = dict(self._log_starts)
        self.high_watermarks = read_offsets(self.storage, self._to_path(HIGH_WATERMARKS))
        self._cleaned = read_offsets(self.storage, self._to_path(CLEANED_OFFSETS))

    def _fix_salt(self) -> None:
        """Adopt the stored secret of digests, or store that of this process. Raises `OSError`."""
        path, stored = self._to_path(ID_SALT), b""
        with contextlib.suppress(FileNotFoundError):
            stored = self.storage.read_file(path)
        salt = fix_salt(stored)
        if salt != stored:
            self.storage.replace_file(path, salt, sync=False)

    def read_meta_properties(self) -> Mapping[str, str] | None:
        """Return `meta.properties`, also before the directory is opened; None without the file.
        Raises `CorruptLog`."""
        try:
            properties = read_properties(self.storage, self._to_path(META))
        except UnicodeDecodeError:
            properties = {}
        missing = {"version", "cluster.id", "node.id"} - (properties or {}).keys()
        if properties is not None and missing:
            raise CorruptLog(
                f"{self._to_path(META)} is damaged: it lacks {', '.join(sorted(missing))}. Restore "
                f"it from a backup, or write it again: {_IDENTITY_LINES}"
            )
        return properties

    def _read_identity(self) -> Mapping[str, str] | None:
        """Return `meta.properties`; None if the directory is new. Raises `CorruptLog`."""
        properties = self.read_meta_properties()
        if properties is None and (names := self.find_logs_with_data()):
            self.unlock()
            raise CorruptLog(
                f"{self.path} has data ({names[0]}), but {self._to_path(META)} is missing, which "
                "says to which cluster it belongs. Restore it from a backup, or write it again:"
                f" {_IDENTITY_LINES}"
            )
        return properties

    def find_logs_with_data(self) -> list[str]:
        """Return the names of the logs that have any file with contents."""
        names = [f"{topic}-{index}" for (topic, index), _ in self.find_partitions()]
        return [name for name in names if self.has_data(name)]

    def count_segments(self) -> int:
        """Return the number of segments of all logs: each needs a descriptor."""
        directories = (
            self._to_path(f"{topic}-{index}") for (topic, index), _ in self.find_partitions()
        )
        return sum(
            name.endswith(LOG) for path in directories for name in self.storage.list_directory(path)
        )

    def has_data(self, name: str, *suffixes: str) -> bool:
        """Whether any file of a log, with one of these suffixes if there are some, has contents."""
        directory = self._to_path(name)
        return any(
            self.storage.get_size_bytes(f"{directory}/{file}")
            for file in self.storage.list_directory(directory)
            if not suffixes or file.endswith(suffixes)
        )

    def write_property(self, name: str, value: str) -> None:
        """Write a property to `meta.properties`. Raises `OSError`."""
        properties = dict(self.read_meta_properties() or {})
        if properties.get(name) != value:
            write_properties(self.storage, self._to_path(META), {**properties, name: value})

    def _adopt(self, properties: Mapping[str, str], node_id: int, cluster_id: str | None) -> None:
        if cluster_id is not None and properties.get("cluster.id") != cluster_id:
            self.unlock()
            raise DirectoryInUse(
                f"{self.path} has data of cluster {properties.get('cluster.id')}, and this node is "
                f"to be part of cluster {cluster_id}: give it the directory that is its own by"
                " --data-dir, or the other cluster's id by --cluster-id"
            )
        version = properties.get("version", "")
        if version.isdigit() and int(version) > 1:
            self.unlock()
            raise DirectoryInUse(
                f"{self.path} is of a newer format (meta.properties version {version}) than this"
                " release reads: run the release that wrote it, or a later one"
            )
        if version != "1" or properties.get("node.id") != str(node_id):
            self.unlock()
            raise DirectoryInUse(
                f"{self.path} belongs to node {properties.get('node.id')} (meta.properties version "
                f"{properties.get('version')}), and this is node {node_id}"
            )
        self.cluster_id = properties.get("cluster.id", "")
        self.node_id = node_id
        self.directory_id = parse_uuid(properties.get("directory.id", "")) or UUID(int=0)

    def find_partitions(self) -> Iterator[tuple[Partition, UUID | None]]:
        """Return the partitions that have a directory here, with their topic ids, by name. An id
        that is missing or damaged is None."""
        for name in self.storage.list_directory(self.path):
            topic, dash, index = name.rpartition("-")
            directory = self._to_path(name)
            if not (dash and topic and index.isdigit() and self.storage.is_directory(directory)):
                continue
            try:
                topic_id = self._read_topic_id(directory)
            except CorruptLog:  # `open_log` raises it again.
                topic_id = None
            yield (topic, int(index)), topic_id

    def mark_started(self) -> None:
        """Note the start, before anything is written to a log. From now on only `close` makes a
        shutdown clean. `clean` still describes the last shutdown, for logs opened later. No
        restore may replace the data any more."""
        restore_mark.remove(self.storage, self.path)
        self.storage.remove(self._to_path(CLEAN_SHUTDOWN))
        self.storage.sync_directory(self.path)

    def open_log(
        self, topic: str, index: int, config: LogConfig, *, now_ms: int, topic_id: UUID | None
    ) -> Log:
        """Open the log of a partition, or create it. Raises `OSError`, and `CorruptLog` if the
        directory has records of another topic, or does not say of which."""
        partition = (topic, index)
        if partition in self.logs:
            return self.logs[partition]
        directory = self._to_path(f"{topic}-{index}")
        fresh = not self.storage.exists(directory)
        if fresh:
            self._forget_deleted(partition)
        stored_topic_id = self._read_topic_id(directory)
        if topic_id is not None and stored_topic_id not in (None, topic_id):
            raise CorruptLog(
                f"{directory} has records of another topic, with id {format_uuid(stored_topic_id)}"
            )
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
        if topic_id is not None and stored_topic_id is None:
            # The first sync of records makes it durable, so that many partitions are created fast.
            metadata = f"{directory}/{PARTITION_METADATA}"
            write_partition_metadata(self.storage, metadata, format_uuid(topic_id))
            log.owed_paths.append(metadata)
            log.owed_names.append(self.path)
        self.logs[partition] = log
        return log

    @property
    def _checkpoints(self) -> tuple[dict[Partition, int], ...]:
        return self._recovery_points, self._log_starts, self.high_watermarks, self._cleaned

    def _read_topic_id(self, directory: str) -> UUID | None:
        """Return the topic id of a log's directory. Return None without the file, or if a power
        loss emptied it. Raises `CorruptLog`."""
        path = f"{directory}/{PARTITION_METADATA}"
        text = read_partition_metadata(self.storage, path)
        if text is None:
            return None
        topic_id = parse_uuid(text)
        if topic_id is None:
            raise CorruptLog(
                f"{path} is damaged. It has the id of the topic whose records are beside it, in two"
                ' lines: "version: 0" and "topic_id: ID", with the id that `shoal topics describe`'
                " shows. Restore it, or move the directory away if other replicas have the records"
            )
        return topic_id

    def _forget_deleted(self, partition: Partition) -> None:
        """Remove a deleted log of this name from the checkpoint files. What they say of it must not
        apply to the next one, even after a crash. Raises `OSError`."""
        if self._checkpointed.get(partition):
            self._write_recovery_points()
        if self._checkpointed_starts.get(partition) and partition not in self._log_starts:
            self._write_log_starts()

    def forget_log_starts(self, partitions: Collection[Partition]) -> None:
        """Remove the start offsets of logs that are about to be deleted from their file, with one
        write, so that `delete_log` needs none for each. A full disk may refuse it."""
        if any(map(self._checkpointed_starts.get, partitions)):
            for partition in partitions:
                self._log_starts.pop(partition, None)
            with contextlib.suppress(OSError):
                self._write_log_starts()

    def delete_log(self, topic: str, index: int) -> str | None:
        """Take a partition's log out of service. Return the path that `purge` removes after
        file.delete.delay.ms, or None if there is no such log. Raises `OSError`; then the directory
        is there still."""
        partition = (topic, index)
        directory = self._to_path(f"{topic}-{index}")
        log = self.logs.pop(partition, None)
        if log is not None:
            log.offline = True
        for checkpoint in self._checkpoints:
            checkpoint.pop(partition, None)
        if not self.storage.exists(directory):
            return None
        # Before the files go: a log of the same name must not start there, even after a crash. A
        # full disk refuses this, and must not keep what would make room: `open_log` repeats it.
        with contextlib.suppress(OSError):
            if self._checkpointed_starts.get(partition):
                self._write_log_starts()
        while self.storage.exists(staged := self._build_staged_path(topic, index)):
            self._deleted += 1
        self.storage.rename(directory, staged)
        self._deleted += 1
        return staged

    def set_aside(self, topic: str, index: int, now_ms: int) -> str:
        """Rename the directory of a log that is unknown to the metadata and not open, as Kafka
        does. Return its new path. Raises `OSError`."""
        while self.storage.exists(
            path := self._build_renamed_path(topic, index, now_ms, STRAY_SUFFIX)
        ):
            now_ms += 1
        self.storage.rename(self._to_path(f"{topic}-{index}"), path)
        self.storage.sync_directory(self.path)
        return path

    def find_strays(self, before_ms: int | None = None) -> list[str]:
        """Return the directories that `set_aside` has renamed, or only those that it renamed at
        `before_ms` or earlier. Kafka's names have no time, so theirs are only in the whole list.
        """
        names = [n for n in self.storage.list_directory(self.path) if n.endswith(STRAY_SUFFIX)]
        if before_ms is not None:
            names = [name for name in names if 0 <= _parse_renamed_ms(name) <= before_ms]
        return [self._to_path(name) for name in names]

    def _build_staged_path(self, topic: str, index: int) -> str:
        return self._build_renamed_path(topic, index, self._deleted, DELETE_SUFFIX)

    def _build_renamed_path(self, topic: str, index: int, number: int, suffix: str) -> str:
        tail = f"-{index}.{number:032x}{suffix}"
        return self._to_path(topic[: _NAME_MAX - len(tail)] + tail)

    def purge(self, staged: str) -> None:
        """Remove a directory that `delete_log` staged. May run in another thread."""
        self.storage.remove_directory(staged)

    def find_staged_deletes(self) -> list[str]:
        """Return the directories that earlier runs staged and did not remove."""
        names = self.storage.list_directory(self.path)
        return [self._to_path(name) for name in names if name.endswith(DELETE_SUFFIX)]

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
        write_offsets(self.storage, self._to_path(HIGH_WATERMARKS), self.high_watermarks)
        write_offsets(self.storage, self._to_path(CLEANED_OFFSETS), self._cleaned)

    def checkpoint_log_starts(self) -> None:
        """Write the log start offsets only; DeleteRecords needs them before its response."""
        self._log_starts |= {p: log.log_start_offset for p, log in self.logs.items()}
        self._write_log_starts()

    def _write_recovery_points(self) -> None:
        write_offsets(self.storage, self._to_path(RECOVERY_POINTS), self._recovery_points)
        self._checkpointed = dict(self._recovery_points)

    def _write_log_starts(self) -> None:
        starts = {p: offset for p, offset in self._log_starts.items() if offset > 0}
        write_offsets(self.storage, self._to_path(LOG_STARTS), starts)
        self._checkpointed_starts = starts

    def close(self) -> None:
        """Close all logs, and mark the shutdown as clean unless a log failed. Raises `OSError` if
        the checkpoints cannot be written."""
        all_closed = True
        synced: set[str] = set()
        for log in self.logs.values():
            try:
                if log.offline:
                    all_closed = False
                else:
                    log.close(synced)
            except OSError:
                all_closed = False
        self.checkpoint()
        if all_closed:
            marker = json.dumps({"version": 0, "brokerEpoch": self.broker_epoch})
            self.storage.replace_file(self._to_path(CLEAN_SHUTDOWN), marker.encode(), sync=True)
        self.logs.clear()
        self.unlock()

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _to_path(self, name: str) -> str:
        return f"{self.path}/{name}"


def _parse_renamed_ms(name: str) -> int:
    """Return the number in a name of `LogDirectory._build_renamed_path`; -1 in a name of
    Kafka's."""
    digits = name.removesuffix(STRAY_SUFFIX).rpartition(".")[2]
    try:
        number = int(digits, 16)
    except ValueError:
        return -1
    # Kafka has random digits here. Times need the last 12 of 32 digits until the year 10895.
    return number if number < 1 << 48 else -1


def _parse_stopped_epoch(marker: bytes) -> int:
    try:
        return int(json.loads(marker).get("brokerEpoch", -1))
    except (ValueError, AttributeError):
        return -1
