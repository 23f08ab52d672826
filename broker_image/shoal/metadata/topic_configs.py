"""Topic configs, by Kafka's names, and the broker configs that give their defaults."""

from __future__ import annotations

from shoal.metadata.config_keys import table

TOPIC = table(
    """
# applied: Retention and compaction
cleanup.policy list delete compact|delete
    < log.cleanup.policy
    What becomes of old segments: delete, compact, both, or neither when empty.
retention.ms long 604800000 -1..
    < log.retention.ms log.retention.minutes*60000 log.retention.hours*3600000
    Milliseconds that a segment is kept; -1 for ever.
retention.bytes long -1 -
    < log.retention.bytes
    Bytes that a partition may reach before its oldest segments go; -1 for no limit.
file.delete.delay.ms long 60000 0..
    < log.segment.delete.delay.ms
    Milliseconds between a segment's removal from its log and the deletion of its files.
min.cleanable.dirty.ratio double 0.5 0..1
    < log.cleaner.min.cleanable.ratio
    Share of a log that has to be uncompacted before compaction takes it.
min.compaction.lag.ms long 0 0..
    < log.cleaner.min.compaction.lag.ms
    Milliseconds for which a record is safe from compaction.
max.compaction.lag.ms long long-max 1..
    < log.cleaner.max.compaction.lag.ms
    Milliseconds after which a record has to have been compacted.
delete.retention.ms long 86400000 0..
    < log.cleaner.delete.retention.ms
    Milliseconds that tombstones stay in a compacted log.
# applied: Segments
segment.bytes int 1073741824 1048576..
    < log.segment.bytes
    Bytes at which a segment is closed and the next one begun.
segment.ms long 604800000 1..
    < log.roll.ms log.roll.hours*3600000
    Milliseconds after which a segment is closed even when not full.
segment.jitter.ms long 0 0..
    < log.roll.jitter.ms log.roll.jitter.hours*3600000
    Milliseconds, at most, that a roll is brought forward at random.
segment.index.bytes int 10485760 4..
    < log.index.size.max.bytes
    Bytes that a segment's offset index may reach.
index.interval.bytes int 4096 0..
    < log.index.interval.bytes
    Bytes of log between two entries of the offset index.
preallocate boolean false -
    < log.preallocate
    Whether disk space for a whole segment is reserved when the segment is created.
flush.messages long long-max 1..
    < log.flush.interval.messages
    Records of a partition after which it is synced to disk.
flush.ms long long-max 0..
    < log.flush.interval.ms log.flush.scheduler.interval.ms
    Milliseconds after which records are synced to disk.
shoal.flush.group.commit boolean false -
    < shoal.log.flush.group.commit
    Whether an acknowledged record is on disk: answers wait for a sync that many requests share.
# applied: Records
errors.deadletterqueue.group.enable boolean false -
    Whether share groups may write their dead letters to this topic (KIP-1191).
max.message.bytes int 1048588 0..
    < message.max.bytes
    Bytes that one record batch may have, after compression.
message.timestamp.type string CreateTime CreateTime|LogAppendTime
    < log.message.timestamp.type
    Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).
message.timestamp.before.max.ms long long-max 0..
    < log.message.timestamp.before.max.ms
    Milliseconds that a record's timestamp may be behind the broker's clock.
message.timestamp.after.max.ms long 3600000 0..
    < log.message.timestamp.after.max.ms
    Milliseconds that a record's timestamp may be ahead of the broker's clock.
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer
    < compression.type
    Codec that batches are stored in; producer keeps each as it came.
compression.gzip.level int -1 @gzip-level
    < compression.gzip.level
    Level of gzip where the broker compresses; -1 for the codec's own.
compression.lz4.level int 9 1..17
    < compression.lz4.level
    Level of lz4 where the broker compresses.
compression.zstd.level int 3 -131072..22
    < compression.zstd.level
    Level of zstd where the broker compresses.
# applied: Replicas
min.insync.replicas int 1 1..
    < min.insync.replicas
    In-sync replicas, leader included, that a write with acks=all needs.
unclean.leader.election.enable boolean false -
    < unclean.leader.election.enable
    Whether a replica out of sync may become leader, losing records, when no other is left.
leader.replication.throttled.replicas list "" @throttled
    Replicas throttled at their leader, as partition:broker, or * for all.
follower.replication.throttled.replicas list "" @throttled
    Replicas throttled at their follower, as partition:broker, or * for all.
# accepted: For tests of Kafka
internal.segment.bytes int - - internal
    Bytes at which a segment is closed, below segment.bytes' least value, for tests.
# accepted: Tiered storage, without remote.storage.enable
local.retention.bytes long -2 -2..
    < log.local.retention.bytes
    Bytes of a tiered partition that stay on local disk; -2 follows retention.bytes.
local.retention.ms long -2 -2..
    < log.local.retention.ms
    Milliseconds that a tiered segment stays on local disk; -2 follows retention.ms.
# refused: Tiered storage
remote.storage.enable boolean false -
    Tiered storage is not part of this broker.
remote.log.copy.disable boolean false -
    Tiered storage is not part of this broker.
remote.log.delete.on.disable boolean false -
    Tiered storage is not part of this broker.
"""
)
