"""The configuration of one log: a topic's effective settings, by Kafka's names.

`LogConfig.from_settings` reads them from property names, and ignores those that do not concern the
log. Defaults are those of Kafka 4.4.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.record.batch import TimestampType

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONG_MAX = 2**63 - 1
#: local.retention.* that has the value of retention.*.
_FOLLOWS_RETENTION = -2


class BatchRules(NamedTuple):
    """What the validation of each produced batch needs, found once for a config."""

    size_max: int
    before_max_ms: int
    after_max_ms: int
    keyed: bool
    create_time: bool
    #: Whether a batch that is not compressed is stored so, and nobody looks for ids in it.
    keeps_uncompressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic configs that a log uses. Times are in milliseconds and sizes in bytes; -1 means
    no limit where Kafka allows it. `batch_rules` and `deduplicates` follow from the others."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = _LONG_MAX
    flush_ms: int = _LONG_MAX
    index_interval_bytes: int = 4096
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = _LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = _LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    preallocate: bool = False
    remote_copy_lag_bytes: int = -1
    remote_copy_lag_ms: int = 0
    remote_log_copy_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    shoal_deduplication_ids_max: int = 100_000_000
    shoal_deduplication_memory_bytes: int = 16 << 20
    shoal_deduplication_window_ms: int = 0
    #: Whether a record is left out if its id is known. Never in a compacted log, which may have
    #: lost the first record with the id.
    deduplicates: bool = field(init=False, repr=False, compare=False)
    batch_rules: BatchRules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        deduplicates = self.shoal_deduplication_window_ms > 0 and not self.compact
        object.__setattr__(self, "deduplicates", deduplicates)
        rules = BatchRules(
            min(self.max_message_bytes, self.segment_bytes),
            self.message_timestamp_before_max_ms,
            self.message_timestamp_after_max_ms,
            self.compact,
            self.timestamp_type is TimestampType.CREATE_TIME,
            self.compression_type in ("producer", "uncompressed") and not deduplicates,
        )
        object.__setattr__(self, "batch_rules", rules)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> LogConfig:
        """Convert property names ("segment.bytes") with typed values; a list may be one string."""
        values = {
            f.name: settings[name]
            for f in fields(cls)
            if (name := f.name.replace("_", ".")) in settings
        }
        policy = values.get("cleanup_policy")
        if isinstance(policy, str):
            values["cleanup_policy"] = tuple(p.strip() for p in policy.split(",") if p.strip())
        elif policy is not None:
            values["cleanup_policy"] = tuple(policy)
        return cls(**values)

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def timestamp_type(self) -> TimestampType:
        if self.message_timestamp_type == "LogAppendTime":
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def effective_local_retention_ms(self) -> int:
        """The age of copied segments that stay on the disk; -2 follows retention.ms."""
        local = self.local_retention_ms
        return self.retention_ms if local == _FOLLOWS_RETENTION else local

    @property
    def effective_local_retention_bytes(self) -> int:
        """The size of copied segments that stay on the disk; -2 follows retention.bytes."""
        local = self.local_retention_bytes
        return self.retention_bytes if local == _FOLLOWS_RETENTION else local

    @property
    def roll_ms(self) -> int:
        """The age at which a segment rolls. Compaction needs closed segments, so
        max.compaction.lag.ms limits the age for compacted logs (KIP-354)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def compression_level(self) -> int | None:
        """The level of `compression_type`, or None if it has none."""
        return {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }.get(self.compression_type)
