"""Topic configs under Kafka's names, with the broker configs that set their defaults."""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table

TOPIC = parse_table(
    """
# applied: Retention and compaction
cleanup.policy list delete compact|delete
    < log.cleanup.policy
    Policy for old segments: delete, compact, or both. If empty, segments are kept.
retention.ms long 604800000 -1..
    < log.retention.ms log.retention.minutes*60000 log.retention.hours*3600000
    Age after which a segment is deleted. -1 means never.
retention.bytes long -1 -
    < log.retention.bytes
    Maximum size of a partition. The oldest segments are deleted above it. -1 means no limit.
file.delete.delay.ms long 60000 0..
    < log.segment.delete.delay.ms
    Delay between the removal of a segment from the log and the deletion of its files.
min.cleanable.dirty.ratio double 0.5 0..1
    < log.cleaner.min.cleanable.ratio
    Minimum ratio of uncompacted to total bytes of a log for its compaction.
min.compaction.lag.ms long 0 0..
    < log.cleaner.min.compaction.lag.ms
    Minimum age of a record before compaction may remove it.
max.compaction.lag.ms long long-max 1..
    < log.cleaner.max.compaction.lag.ms
    Maximum time that a record stays uncompacted.
delete.retention.ms long 86400000 0..
    < log.cleaner.delete.retention.ms
    Time that a compacted log keeps tombstones.
# applied: Segments
segment.bytes int 1073741824 1048576..
    < log.segment.bytes
    Maximum size of a segment. A full segment is closed and a new one starts.
segment.ms long 604800000 1..
    < log.roll.ms log.roll.hours*3600000
    Maximum age of the active segment. It is then closed even if it is not full.
segment.jitter.ms long 0 0..
    < log.roll.jitter.ms log.roll.jitter.hours*3600000
    Maximum random reduction of segment.ms.
segment.index.bytes int 10485760 4..
    < log.index.size.max.bytes
    Maximum size of a segment's offset index.
index.interval.bytes int 4096 0..
    < log.index.interval.bytes
    Bytes of log between two entries of the offset index.
preallocate boolean false -
    < log.preallocate
    Whether a new segment reserves its full size on disk.
flush.messages long long-max 1..
    < log.flush.interval.messages
    Number of records of a partition after which the log is synced to disk.
flush.ms long long-max 0..
    < log.flush.interval.ms log.flush.scheduler.interval.ms
    Maximum time until records are synced to disk.
shoal.flush.group.commit boolean false -
    < shoal.log.flush.group.commit
    Whether the broker syncs records to disk before it acknowledges them. Many requests share one
    sync.
# applied: Records
errors.deadletterqueue.group.enable boolean false -
    Whether share groups may write their dead letters to this topic (KIP-1191).
shoal.key.ranges.enable boolean false -
    Whether several readers may share a partition by key ranges.
shoal.deduplication.window.ms long 0 0..604800000
    Time for which a partition knows the header shoal.dedup.id of each record. Another record with
    a known id is not appended: its producer gets the offset of the first. 0 means that ids have no
    effect. Not for compacted topics.
shoal.deduplication.ids.max int 100000000 1..
    Maximum number of ids that a partition knows. Records with more ids within
    shoal.deduplication.window.ms are refused.
shoal.deduplication.memory.bytes long 16777216 1024..1073741824
    Memory of the leader for the ids of a partition. Each takes up to 16 bytes. Older ids that do
    not fit are in files beside the log, with 15 bytes each.
max.message.bytes int 1048588 0..
    < message.max.bytes
    Maximum size of a record batch after compression.
message.timestamp.type string CreateTime CreateTime|LogAppendTime
    < log.message.timestamp.type
    Timestamps of records: the producer's (CreateTime) or the broker's (LogAppendTime).
message.timestamp.before.max.ms long long-max 0..
    < log.message.timestamp.before.max.ms
    Maximum time by which a record's timestamp may be behind the broker's clock.
message.timestamp.after.max.ms long 3600000 0..
    < log.message.timestamp.after.max.ms
    Maximum time by which a record's timestamp may be ahead of the broker's clock.
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer
    < compression.type
    Codec of stored batches. producer keeps the codec of each batch.
compression.gzip.level int -1 @gzip-level
    < compression.gzip.level
    Level of gzip if the broker compresses. -1 is the codec's default.
compression.lz4.level int 9 1..17
    < compression.lz4.level
    Level of lz4 if the broker compresses.
compression.zstd.level int 3 -131072..22
    < compression.zstd.level
    Level of zstd if the broker compresses.
# applied: Replicas
min.insync.replicas int 1 1..
    < min.insync.replicas
    In-sync replicas, including the leader, that a write with acks=all needs.
unclean.leader.election.enable boolean false -
    < unclean.leader.election.enable
    Whether an out-of-sync replica may become leader if no in-sync replica is available. Records may
    be lost.
leader.replication.throttled.replicas list "" @throttled
    Replicas whose leader is throttled, as partition:broker, or * for all.
follower.replication.throttled.replicas list "" @throttled
    Replicas whose follower is throttled, as partition:broker, or * for all.
# refused: Records that grow
max.decompressed.message.bytes int 2147483639 1..2147483639
    < max.decompressed.message.bytes
    Maximum size of a record after decompression. Shoal limits a whole batch instead, to 128 MiB.
# accepted: Internal
internal.segment.bytes int - - internal
    Maximum size of a segment below the minimum of segment.bytes, for tests.
# applied: Tiered storage
remote.storage.enable boolean false -
    Whether closed segments are copied to the object store, so that the local disk need not keep
    them. Compacted topics need shoal.remote.compacted.topics.enable as well. To set it to false,
    set remote.log.delete.on.disable to true as well.
local.retention.bytes long -2 -2..
    < log.local.retention.bytes
    Maximum size of a tiered partition on local disk. -2 means that retention.bytes applies.
local.retention.ms long -2 -2..
    < log.local.retention.ms
    Time that a tiered segment stays on local disk. -2 means that retention.ms applies.
remote.copy.lag.ms long 0 -1..
    < log.remote.copy.lag.ms
    Age of its latest record at which a closed segment is copied to the object store, unless
    remote.copy.lag.bytes lets it be copied earlier (KIP-1241). 0 means at once, -1 the time of
    local.retention.ms.
remote.copy.lag.bytes long -1 -1..
    < log.remote.copy.lag.bytes
    Bytes of newer records at which a closed segment is copied to the object store, unless
    remote.copy.lag.ms lets it be copied earlier. 0 means at once, -1 the size of
    local.retention.bytes.
remote.log.copy.disable boolean false -
    Whether nothing more is copied to the object store. Records there stay readable until
    retention.* removes them. If true, local.retention.* must be -2 or equal to retention.*.
remote.log.delete.on.disable boolean false -
    Whether the remote segments are deleted when remote.storage.enable becomes false.
"""
)
