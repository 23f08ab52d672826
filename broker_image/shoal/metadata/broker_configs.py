"""Broker configs that shape this broker, by Kafka's names (and ours under `shoal.`).

`accepted_configs` has the rest of what Kafka 4.3.1 documents; `BROKER` is the whole.
`config_keys.table` tells how a row reads.
"""

from __future__ import annotations

from shoal.metadata.accepted_configs import ACCEPTED
from shoal.metadata.cluster_configs import CLUSTER
from shoal.metadata.config_keys import table

BROKER = table(
    """
# applied: Who this broker is and where it listens
node.id int 1 0..
    Number of this broker, unique in its cluster.
broker.id int -1 -
    Older name of node.id; -1 leaves it to node.id.
broker.rack string - -
    Rack or zone of this broker, told to clients and used to spread replicas.
listeners list PLAINTEXT://127.0.0.1:9092 - per-broker
    Addresses to listen on, as NAME://host:port; an empty host means all interfaces.
advertised.listeners list - -
    Addresses that clients are told to connect to; the listeners themselves when unset.
listener.security.protocol.map string - - per-broker
    = SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
    Security protocol of each listener name, as NAME:PROTOCOL.
shoal.brokers.per.host int 1 1..64
    Brokers that `shoal server` runs on this host, each with the next id and the next ports, its own
    directory in this one's, and the host's name for a rack unless broker.rack is set.
# applied: Connections and requests
shoal.metrics.listener string - -
    Address, as host:port, of the HTTP listener with /metrics, /healthz and /readyz; none if unset.
max.connections int int-max 0.. cluster-wide
    Connections that this broker takes at a time, over all addresses.
max.connections.per.ip int int-max 0.. cluster-wide
    Connections that this broker takes at a time from one address.
max.connections.per.ip.overrides string "" @per-ip cluster-wide
    Exceptions to max.connections.per.ip, as address:count,address:count.
max.connection.creation.rate int int-max 0.. cluster-wide
    New connections a second that this broker serves; those that come faster wait.
connections.max.idle.ms long 600000 -
    Milliseconds after which a connection without requests is closed.
socket.request.max.bytes int 104857600 1..
    Bytes that one request may have; a longer one closes its connection.
queued.max.requests int 500 1..
    Produce requests over all connections that were received and are not yet appended. At this
    number the broker reads no further ones. Requests that wait for replicas do not count.
queued.max.request.bytes long -1 -
    Bytes over all connections of large requests that are arriving, and of produce requests that
    are not yet appended. At this sum the broker reads no further ones; -1 for no limit.
socket.receive.buffer.bytes int 102400 -
    Bytes of a connection's receive buffer (SO_RCVBUF) if set; otherwise, and at -1, the system
    chooses.
socket.send.buffer.bytes int 102400 -
    Bytes of a connection's send buffer (SO_SNDBUF); -1 leaves it to the system.
socket.listen.backlog.size int 50 1..
    Connections that may wait to be accepted.
socket.connection.setup.timeout.ms long 1000 1..
    Milliseconds that a connection to another broker may take to open, TCP and ApiVersions
    included. The limit doubles with each failure in a row. Kafka's default is 10000.
socket.connection.setup.timeout.max.ms long 30000 1..
    Milliseconds that the doubled limit of socket.connection.setup.timeout.ms reaches at most.
request.timeout.ms int 30000 -
    Milliseconds that this broker waits for the answer of another one.
max.request.partition.size.limit int 2000 1..
    Partitions that one DescribeTopicPartitions answer may hold.
fetch.max.bytes int 57671680 1024..
    Bytes that one fetch may return, whatever its client asks for.
max.incremental.fetch.session.cache.slots int 1000 0..
    Fetch sessions (KIP-227) kept at a time.
# applied: Client quotas
quota.window.num int 11 1..
    Samples that the rates of client quotas are taken over.
quota.window.size.seconds int 1 1..
    Seconds of such a sample.
controller.quota.window.num int 11 1..
    Samples' worth of topic changes that a client may make at once.
controller.quota.window.size.seconds int 1 1..
    Seconds of such a sample.
# applied: Topics
auto.create.topics.enable boolean true -
    Whether asking for the metadata of an unknown topic creates it.
delete.topic.enable boolean true -
    Whether topics can be deleted.
num.partitions int 1 1..
    Partitions of a new topic whose creator names no count.
default.replication.factor int 1 -
    Replicas of a new topic whose creator names no count.
min.insync.replicas int 1 1.. cluster-wide
    In-sync replicas, leader included, that a write with acks=all needs.
message.max.bytes int 1048588 0.. cluster-wide
    Bytes that one record batch may have, after compression.
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer cluster-wide
    Codec that batches are stored in; producer keeps each as it came.
compression.gzip.level int -1 @gzip-level cluster-wide
    Level of gzip where this broker compresses; -1 for the codec's own.
compression.lz4.level int 9 1..17 cluster-wide
    Level of lz4 where this broker compresses.
compression.zstd.level int 3 -131072..22 cluster-wide
    Level of zstd where this broker compresses.
# applied: Log
log.dir list ./shoal-data -
    Directory of the logs, where log.dirs is unset.
log.dirs list - -
    Directories of the logs; this broker uses one.
log.segment.bytes int 1073741824 1048576.. cluster-wide
    Bytes at which a segment is closed and the next one begun.
log.roll.ms long - - cluster-wide
    Milliseconds after which a segment is closed even when not full; log.roll.hours when
    unset.
log.roll.hours int 168 1..
    Hours after which a segment is closed even when not full, where log.roll.ms is unset.
log.roll.jitter.ms long - - cluster-wide
    Milliseconds, at most, that a roll is brought forward at random; log.roll.jitter.hours
    when unset.
log.roll.jitter.hours int 0 0..
    Hours, at most, that a roll is brought forward at random, where log.roll.jitter.ms is
    unset.
log.retention.ms long - - cluster-wide
    Milliseconds that a segment is kept; -1 for ever; log.retention.minutes when unset.
log.retention.minutes int - -
    Minutes that a segment is kept, where log.retention.ms is unset; log.retention.hours when
    unset.
log.retention.hours int 168 -
    Hours that a segment is kept, where neither milliseconds nor minutes are set; -1 for ever.
log.retention.bytes long -1 - cluster-wide
    Bytes that a partition may reach before its oldest segments go; -1 for no limit.
log.retention.check.interval.ms long 300000 1..
    Milliseconds between two searches for segments to delete.
log.segment.delete.delay.ms long 60000 0.. cluster-wide
    Milliseconds between a segment's removal from its log and the deletion of its files.
log.cleanup.policy list delete compact|delete cluster-wide
    What becomes of old segments: delete, compact, both, or neither when empty.
log.index.size.max.bytes int 10485760 4.. cluster-wide
    Bytes that a segment's offset index may reach.
log.index.interval.bytes int 4096 0.. cluster-wide
    Bytes of log between two entries of the offset index.
log.preallocate boolean false - cluster-wide
    Whether disk space for a whole segment is reserved when the segment is created.
log.flush.interval.messages long long-max 1.. cluster-wide
    Records of a partition after which it is synced to disk.
log.flush.interval.ms long - - cluster-wide
    Milliseconds after which records are synced to disk; log.flush.scheduler.interval.ms when
    unset.
log.flush.scheduler.interval.ms long long-max -
    Milliseconds after which records are synced to disk, where log.flush.interval.ms is unset.
shoal.log.flush.group.commit boolean false - cluster-wide
    Whether an acknowledged record is on disk: answers wait for a sync that many requests share.
log.flush.offset.checkpoint.interval.ms int 60000 0..
    Milliseconds between two writes of the recovery points.
log.message.timestamp.type string CreateTime CreateTime|LogAppendTime cluster-wide
    Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).
log.message.timestamp.before.max.ms long long-max 0.. cluster-wide
    Milliseconds that a record's timestamp may be behind the broker's clock.
log.message.timestamp.after.max.ms long 3600000 0.. cluster-wide
    Milliseconds that a record's timestamp may be ahead of the broker's clock.
log.cleaner.enable boolean true -
    Whether logs are compacted at all.
log.cleaner.backoff.ms long 15000 0.. cluster-wide
    Milliseconds to rest when no log needs compaction.
log.cleaner.dedupe.buffer.size long 134217728 - cluster-wide
    Bytes of memory for the keys that compaction keeps track of.
log.cleaner.io.max.bytes.per.second double double-max 1.. cluster-wide
    Bytes per second that compaction reads and writes at most, in sum.
log.cleaner.min.cleanable.ratio double 0.5 0..1 cluster-wide
    Share of a log that has to be uncompacted before compaction takes it.
log.cleaner.min.compaction.lag.ms long 0 0.. cluster-wide
    Milliseconds for which a record is safe from compaction.
log.cleaner.max.compaction.lag.ms long long-max 1.. cluster-wide
    Milliseconds after which a record has to have been compacted.
log.cleaner.delete.retention.ms long 86400000 0.. cluster-wide
    Milliseconds that tombstones stay in a compacted log.
# applied: Producers
producer.id.expiration.ms int 86400000 1.. cluster-wide
    Milliseconds without writes after which an idempotent producer's state is dropped.
producer.id.expiration.check.interval.ms int 600000 1.. internal
    Milliseconds between two searches for producers to drop.
# applied: Offsets of groups
offsets.topic.num.partitions int 50 1..
    Partitions of __consumer_offsets; fixed once the topic exists.
offsets.topic.replication.factor short 3 1..
    Replicas of __consumer_offsets, as far as there are brokers.
offsets.topic.segment.bytes int 104857600 1..
    Bytes of a segment of __consumer_offsets.
offsets.topic.compression.codec int 0 0..4
    Codec of the batches in __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
offsets.retention.minutes int 10080 1..
    Minutes that the offsets of a group without members are kept.
offsets.retention.check.interval.ms long 600000 1..
    Milliseconds between two searches for offsets to drop.
offset.metadata.max.bytes int 4096 -
    Bytes of metadata that a client may put beside an offset.
offsets.commit.timeout.ms int 5000 1..
    Milliseconds that an offset commit may wait to be written.
# applied: Transactions
transaction.state.log.num.partitions int 50 1..
    Partitions of __transaction_state; fixed once the topic exists.
transaction.state.log.replication.factor short 3 1..
    Replicas of __transaction_state, as far as there are brokers.
transaction.state.log.segment.bytes int 104857600 1..
    Bytes of a segment of __transaction_state.
transaction.max.timeout.ms int 900000 1..
    Longest transaction timeout, in milliseconds, that a producer may ask for.
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 1..
    Milliseconds between two searches for transactional ids to drop.
transaction.partition.verification.enable boolean true - cluster-wide
    Whether a write checks that its partition belongs to the transaction.
transactional.id.expiration.ms int 604800000 1..
    Milliseconds without use after which a transactional id is dropped.
add.partitions.to.txn.retry.backoff.max.ms int 100 0..
    Milliseconds that a write waits at most for the end of its producer's last transaction.
# applied: Classic groups
group.initial.rebalance.delay.ms int 3000 -
    Milliseconds that a new group waits for more members before its first rebalance.
group.min.session.timeout.ms int 6000 -
    Shortest session timeout, in milliseconds, that a classic member may ask for.
group.max.session.timeout.ms int 1800000 -
    Longest session timeout, in milliseconds, that a classic member may ask for.
group.max.size int int-max 1..
    Members that a classic group may have.
# applied: Consumer groups (KIP-848)
group.consumer.assignors list uniform,range uniform|range
    Server-side assignors; members that name none get the first.
group.consumer.max.size int int-max 1..
    Members that a consumer group may have.
group.consumer.migration.policy string bidirectional ~disabled|downgrade|upgrade|bidirectional
    Whether a group may move between the classic and the consumer protocol.
group.consumer.session.timeout.ms int 45000 1..
    Milliseconds without heartbeat after which a member is out.
group.consumer.min.session.timeout.ms int 45000 1..
    Least value of a group's consumer.session.timeout.ms.
group.consumer.max.session.timeout.ms int 60000 1..
    Greatest value of a group's consumer.session.timeout.ms.
group.consumer.heartbeat.interval.ms int 5000 1..
    Milliseconds between the heartbeats of a member.
group.consumer.min.heartbeat.interval.ms int 5000 1..
    Least value of a group's consumer.heartbeat.interval.ms.
group.consumer.max.heartbeat.interval.ms int 15000 1..
    Greatest value of a group's consumer.heartbeat.interval.ms.
group.consumer.assignment.interval.ms int 1000 0.. cluster-wide
    Milliseconds, at least, between two assignments of a group.
group.consumer.min.assignment.interval.ms int 0 0..
    Least value of a group's consumer.assignment.interval.ms.
group.consumer.max.assignment.interval.ms int 15000 0..
    Greatest value of a group's consumer.assignment.interval.ms.
# applied: Share groups (KIP-932)
group.share.max.size int 200 1..10000
    Members that a share group may have.
group.share.max.share.sessions int 2000 1..
    Share sessions that this broker keeps at a time; at least group.share.max.size.
group.share.session.timeout.ms int 45000 1..
    Milliseconds without heartbeat after which a member is out.
group.share.min.session.timeout.ms int 45000 1..
    Least value of a group's share.session.timeout.ms.
group.share.max.session.timeout.ms int 60000 1..
    Greatest value of a group's share.session.timeout.ms.
group.share.heartbeat.interval.ms int 5000 1..
    Milliseconds between the heartbeats of a member.
group.share.min.heartbeat.interval.ms int 5000 1..
    Least value of a group's share.heartbeat.interval.ms.
group.share.max.heartbeat.interval.ms int 15000 1..
    Greatest value of a group's share.heartbeat.interval.ms.
group.share.assignment.interval.ms int 1000 0.. cluster-wide
    Milliseconds, at least, between two assignments of a group.
group.share.min.assignment.interval.ms int 0 0..
    Least value of a group's share.assignment.interval.ms.
group.share.max.assignment.interval.ms int 15000 0..
    Greatest value of a group's share.assignment.interval.ms.
group.share.record.lock.duration.ms int 30000 1000..3600000
    Milliseconds that a record stays acquired before it is available again.
group.share.min.record.lock.duration.ms int 15000 1000..30000
    Least value of a group's share.record.lock.duration.ms.
group.share.max.record.lock.duration.ms int 60000 30000..3600000
    Greatest value of a group's share.record.lock.duration.ms.
group.share.delivery.count.limit int 5 2..10
    Deliveries of a record before it is archived.
group.share.min.delivery.count.limit int 2 2..5
    Least value of a group's share.delivery.count.limit.
group.share.max.delivery.count.limit int 10 5..25
    Greatest value of a group's share.delivery.count.limit.
group.share.partition.max.record.locks int 2000 100..10000
    Records of one share partition that may be in flight.
group.share.min.partition.max.record.locks int 100 100..2000
    Least value of a group's share.partition.max.record.locks.
group.share.max.partition.max.record.locks int 4000 2000..10000
    Greatest value of a group's share.partition.max.record.locks.
group.share.initialize.retry.interval.ms int 30000 1.. internal
    Milliseconds before the start of a share partition is tried again.
errors.deadletterqueue.auto.create.topics.enable boolean false - cluster-wide
    Whether a share group's dead-letter topic is created when it is first written to (KIP-1191).
errors.deadletterqueue.topic.name.prefix string dlq. - cluster-wide
    What the names of dead-letter topics begin with.
shoal.group.share.connection.lost.grace.ms int 300 0..
    Milliseconds that a share member may be without a connection before it counts as gone.
shoal.group.share.takeover.heartbeat.interval.ms int 400 0..
    Milliseconds between heartbeats for each reader of the partition with the fewest, so that
    members soon take over from a dead one; 0 leaves share.heartbeat.interval.ms alone. A group is
    asked for 1,000 heartbeats a second at most.
share.coordinator.state.topic.num.partitions int 50 1..
    Partitions of __share_group_state; fixed once the topic exists.
share.coordinator.state.topic.replication.factor short 3 1..
    Replicas of __share_group_state, as far as there are brokers.
share.coordinator.state.topic.segment.bytes int 104857600 1..
    Bytes of a segment of __share_group_state.
share.coordinator.state.topic.compression.codec int 0 0..4
    Codec of the batches in __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
share.coordinator.state.topic.prune.interval.ms int 300000 1.. internal
    Milliseconds between two removals of what newer snapshots replace.
share.coordinator.snapshot.update.records.per.snapshot int 500 0..500
    Updates of a share partition's state after which a snapshot is written.
share.coordinator.cold.partition.snapshot.interval.ms int 300000 1.. internal
    Milliseconds without writes after which a share partition gets a new snapshot.
share.coordinator.write.timeout.ms int 5000 1..
    Milliseconds that a write of share-group state may wait.
# applied: Telemetry
telemetry.max.bytes int 1048576 1..
    Bytes of metrics that a client may push in one request (KIP-714).
""",
    CLUSTER,
    ACCEPTED,
)
