"""Broker configs with an effect, under Kafka's names or Shoal's own, which start with `shoal.`.

`BROKER` also includes `cluster_configs`, `sasl_configs`, `tls_configs` and `accepted_configs`.
`config_keys.parse_table` has the format.
"""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table
from shoal.metadata.config_tables.accepted_configs import ACCEPTED
from shoal.metadata.config_tables.cluster_configs import CLUSTER
from shoal.metadata.config_tables.sasl_configs import SASL
from shoal.metadata.config_tables.tls_configs import TLS

BROKER = parse_table(
    """
# applied: Identity and listeners
node.id int 1 0..
    Id of this broker, unique in its cluster.
broker.id int -1 -
    Older name of node.id. -1 means that node.id applies.
broker.rack string - -
    Rack or zone of this broker. Clients receive it, and replicas are spread over racks.
listeners list PLAINTEXT://127.0.0.1:9092 - per-broker
    Addresses to listen on, as NAME://host:port. An empty host means all interfaces.
advertised.listeners list - -
    Addresses that brokers return to clients. If unset, the listeners.
listener.security.protocol.map string - - per-broker
    = SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
    Security protocol of each listener name, as NAME:PROTOCOL.
shoal.insecure.listeners.enable boolean false -
    Whether listeners without encryption may be reached from other hosts.
shoal.brokers.per.host int 1 1..64
    Brokers that `shoal server` runs on this host. Each gets the next id, the next ports and its own
    subdirectory. Their rack is the host's name unless broker.rack is set.
# applied: Connections and requests
shoal.metrics.listener string - -
    Address of the HTTP listener with /metrics, /healthz and /readyz, as host:port. If unset, there
    is none.
shoal.metrics.security.protocol string PLAINTEXT PLAINTEXT|SSL -
    SSL serves /metrics over TLS only, with the configs listener.name.metrics.ssl.*. /healthz and
    /readyz are still served without TLS.
shoal.metrics.token.file string - -
    File with bearer tokens, one on a line. /metrics then needs one, or a certificate of a client.
    The broker reads it again when it changes.
max.connections int int-max 0.. cluster-wide
    Maximum number of open connections of this broker.
max.connections.per.ip int int-max 0.. cluster-wide
    Maximum number of open connections from one address.
max.connections.per.ip.overrides string "" @per-ip cluster-wide
    Exceptions to max.connections.per.ip, as address:count,address:count.
max.connection.creation.rate int int-max 0.. cluster-wide
    Maximum rate of new connections. Connections above the rate wait.
connections.max.idle.ms long 600000 -
    Milliseconds after which the broker closes a connection without requests.
socket.request.max.bytes int 104857600 1..
    Maximum size of a request. The broker closes the connection of a larger one.
queued.max.requests int 500 1..
    Maximum number of received produce requests that are not yet appended, over all connections. At
    this number the broker stops reading requests. Requests that wait for replicas do not count.
queued.max.request.bytes long -1 -
    Maximum bytes of large requests that are arriving and of produce requests that are not yet
    appended, over all connections. At this size the broker stops reading requests. -1 means no
    limit.
shoal.request.memory.bytes long 268435456 1048576..
    Memory for large requests that are arriving and for produce requests that are not yet appended.
    A client may use as much as is still free, so one client gets half. The others wait, and the
    oldest incomplete request always goes on.
socket.receive.buffer.bytes int 102400 -
    Size of a connection's receive buffer (SO_RCVBUF). If unset or -1, the operating system decides.
socket.send.buffer.bytes int 102400 -
    Size of a connection's send buffer (SO_SNDBUF). -1 means that the operating system decides.
socket.listen.backlog.size int 50 1..
    Maximum number of connections that wait to be accepted.
socket.connection.setup.timeout.ms long 1000 1..
    Timeout for opening a connection to another broker, including ApiVersions. It doubles with each
    failure in a row. Kafka's default is 10000.
socket.connection.setup.timeout.max.ms long 30000 1..
    Upper limit of the doubled socket.connection.setup.timeout.ms.
request.timeout.ms int 30000 -
    Timeout of this broker's requests to other brokers.
max.request.partition.size.limit int 2000 1..
    Maximum number of partitions in one response to DescribeTopicPartitions.
fetch.max.bytes int 57671680 1024..
    Maximum bytes that one fetch returns, even if the client requests more.
shoal.fetch.key.ranges.enable boolean true -
    Whether fetches may name key ranges of topics with shoal.key.ranges.enable.
shoal.fetch.key.ranges.cache.bytes long 33554432 0..
    Memory for batches in which key ranges were searched, with the hashes of their records. 0
    switches the cache off.
max.incremental.fetch.session.cache.slots int 1000 0..
    Maximum number of fetch sessions (KIP-227) on this broker.
# applied: Delegation tokens
delegation.token.secret.key password - -
    Secret key of delegation tokens, the same on all brokers and controllers. Without it, there are
    no delegation tokens.
delegation.token.max.lifetime.ms long 604800000 1..
    Maximum lifetime of a delegation token, renewals included.
delegation.token.expiry.time.ms long 86400000 1..
    Time after which a delegation token expires unless it is renewed.
delegation.token.expiry.check.interval.ms long 3600000 1..
    Interval at which the active controller removes expired delegation tokens.
# applied: Tiered storage
remote.log.storage.system.enable boolean false -
    Whether topics may set remote.storage.enable. Set it on all brokers and controllers.
shoal.remote.store.url string "" -
    The object store: s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix, or
    file:///directory. Credentials come from the environment, files or workload identity.
shoal.remote.store.endpoint string "" -
    URL of a server that speaks the protocol of the store, such as http://127.0.0.1:9000. If empty,
    the provider's.
shoal.remote.store.region string "" -
    Region of an S3 bucket. If empty, the region of the environment.
shoal.remote.store.request.timeout.ms int 30000 1..
    Deadline of one attempt of a request to the store. The time to transfer its data at 256 KB/s is
    added.
shoal.remote.store.payload.signing string auto auto|always|never
    Whether uploads to S3 are signed with their contents (SHA-256). If not, S3 checks a
    CRC-64/NVME, which needs less than a tenth of the CPU. auto signs them where
    shoal.remote.store.endpoint begins with http://. If the server refuses the first upload
    without, later ones are signed.
shoal.remote.copy.interval.ms long 3600000 -1..
    Age at which the active segment of a tiered partition is closed, so that it can be copied. It
    limits how much is not in the store yet. -1 means that segment.ms and segment.bytes alone close
    it.
shoal.remote.compacted.topics.enable boolean false -
    Whether compacted topics may set remote.storage.enable, which Kafka refuses. Set it on all
    brokers and controllers.
shoal.remote.compression.type string uncompressed uncompressed|zstd cluster-wide
    How the chunks of new objects are compressed. Chunks of batches that producers compressed stay
    as they are.
shoal.remote.encryption.key.directory string "" -
    Directory with the keys of objects. The name of a file is the id of its key, and its contents
    are 32 bytes in base64. A key is read from its file whenever it is used.
shoal.remote.encryption.key.id string "" @key-id cluster-wide
    Id of the key that encrypts new objects by AES-256-GCM. Empty means that they are not encrypted.
    Old objects need the keys with which they were encrypted.
shoal.remote.encryption.clear.segments.enable boolean false - cluster-wide
    With a key, whether to read segments that are not encrypted although the cluster's metadata does
    not say that they were copied so. The segments of earlier releases and of a restored cluster may
    be such segments.
shoal.remote.chunk.cache.bytes long 1073741824 1..
    Maximum size of downloaded chunks on the disk. A chunk takes about 8 MB.
shoal.remote.backup.interval.ms long 600000 -1..
    Interval at which the cluster's metadata, and the positions, transactions and share-group states
    that have changed, go to the store. A cluster is restored from there. -1 writes none.
shoal.remote.lease.interval.ms long 10000 100..
    Interval at which a cluster shows in the store that it is alive, so that it is not restored.
shoal.remote.store.incarnation string "" - cluster-wide
    Id of the restore from which this cluster began. `shoal storage restore` sets it.
shoal.remote.orphan.check.interval.ms long 21600000 1000..
    Interval at which the leader of a tiered partition compares its objects with its metadata.
shoal.remote.orphan.grace.ms long 86400000 0..
    Age at which an object is deleted that no metadata names. A copy that is under way is named
    there.
remote.log.manager.copy.max.bytes.per.second long long-max 1.. cluster-wide
    Maximum rate at which this broker copies to the object store, in bytes per second.
remote.log.manager.copy.quota.window.num int 11 1..
    Number of samples from which the rate of copies is measured.
remote.log.manager.copy.quota.window.size.seconds int 1 1..
    Length of a sample of the rate of copies, in seconds.
remote.log.manager.fetch.max.bytes.per.second long long-max 1.. cluster-wide
    Maximum rate at which this broker reads records from the object store, in bytes per second.
remote.log.manager.fetch.quota.window.num int 11 1..
    Number of samples from which the rate of reads is measured.
remote.log.manager.fetch.quota.window.size.seconds int 1 1..
    Length of a sample of the rate of reads, in seconds.
remote.log.manager.task.interval.ms long 30000 1..
    Interval at which a leader copies segments to the store and deletes them there.
follower.fetch.last.tiered.offset.enable boolean false - cluster-wide
    Whether a replica without records copies only the records that are not in the store yet
    (KIP-1023). If not, it copies all records on its leader's disk, including those in the store.
remote.fetch.max.wait.ms int 500 1.. cluster-wide
    Minimum time for which a fetch waits for the store before it returns nothing.
remote.list.offsets.request.timeout.ms long 30000 1.. cluster-wide
    Maximum wait of ListOffsets for the store.
rlmm.config.remote.log.metadata.topic.num.partitions int 50 1..
    Partitions of __remote_log_metadata. The number is fixed once the topic exists.
rlmm.config.remote.log.metadata.topic.replication.factor short 3 1..
    Replicas of __remote_log_metadata, limited by the number of brokers.
rlmm.config.remote.log.metadata.topic.min.isr short 2 1..
    In-sync replicas that a write to __remote_log_metadata needs, limited by its replicas.
log.remote.copy.lag.ms long 0 -1.. cluster-wide
    Age of its latest record at which a closed segment is copied to the object store, unless
    log.remote.copy.lag.bytes lets it be copied earlier. 0 means at once, -1 the time of
    log.local.retention.ms.
log.remote.copy.lag.bytes long -1 -1.. cluster-wide
    Bytes of newer records at which a closed segment is copied to the object store, unless
    log.remote.copy.lag.ms lets it be copied earlier. 0 means at once, -1 the size of
    log.local.retention.bytes.
log.local.retention.bytes long -2 -2.. cluster-wide
    Maximum size of a tiered partition on local disk. -2 means that log.retention.bytes applies.
log.local.retention.ms long -2 -2.. cluster-wide
    Time that a tiered segment stays on local disk. -2 means that log.retention.ms applies.
# applied: Authorization
authorizer.class.name string "" @authorizer
    Class of the authorizer. org.apache.kafka.metadata.authorizer.StandardAuthorizer decides by
    access control entries (ACLs). If empty, all clients may do everything.
super.users string "" @principals
    Principals that may do everything, separated by semicolons, such as User:admin;User:node. List
    the nodes of the cluster here, or give them the permission CLUSTER_ACTION.
allow.everyone.if.no.acl.found boolean false -
    Whether all clients may use a resource that no ACL names.
# applied: Client quotas
quota.window.num int 11 1..
    Number of samples over which the broker measures rates for client quotas.
quota.window.size.seconds int 1 1..
    Length of a sample for client quotas.
controller.quota.window.num int 11 1..
    Number of samples that set the burst limit for topic changes: rate times samples times their
    length.
controller.quota.window.size.seconds int 1 1..
    Length of a sample for the quota of topic changes.
# applied: Topics
auto.create.topics.enable boolean true -
    Whether a metadata request for an unknown topic creates the topic.
delete.topic.enable boolean true -
    Whether topics can be deleted.
num.partitions int 1 1..
    Partitions of a new topic if its creator sets no number.
default.replication.factor int 1 -
    Replicas of a new topic if its creator sets no number.
min.insync.replicas int 1 1.. cluster-wide
    In-sync replicas, including the leader, that a write with acks=all needs. A new cluster stores
    the value of its first controller for all brokers. Change it there afterwards, since those of
    files and flags have no effect then.
message.max.bytes int 1048588 0.. cluster-wide
    Maximum size of a record batch after compression.
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer cluster-wide
    Codec of stored batches. producer keeps the codec of each batch.
compression.gzip.level int -1 @gzip-level cluster-wide
    Level of gzip if the broker compresses. -1 is the codec's default.
compression.lz4.level int 9 1..17 cluster-wide
    Level of lz4 if the broker compresses.
compression.zstd.level int 3 -131072..22 cluster-wide
    Level of zstd if the broker compresses.
# applied: Log
log.dir list ./shoal-data -
    Directory of the logs if log.dirs is unset.
log.dirs list - -
    Directories of the logs. This broker supports one directory.
cordoned.log.dirs list "" - per-broker
    Directories of the logs that get no new replicas: that of this broker, or * for all.
log.segment.bytes int 1073741824 1048576.. cluster-wide
    Maximum size of a segment. A full segment is closed and a new one starts.
log.roll.ms long - - cluster-wide
    Maximum age of the active segment. It is then closed even if it is not full. If unset,
    log.roll.hours applies.
log.roll.hours int 168 1..
    Maximum age of the active segment if log.roll.ms is unset.
log.roll.jitter.ms long - - cluster-wide
    Maximum random reduction of log.roll.ms. If unset, log.roll.jitter.hours applies.
log.roll.jitter.hours int 0 0..
    Maximum random reduction of log.roll.hours if log.roll.jitter.ms is unset.
log.retention.ms long - - cluster-wide
    Age after which a segment is deleted. -1 means never. If unset, log.retention.minutes applies.
log.retention.minutes int - -
    Age after which a segment is deleted if log.retention.ms is unset. If unset, log.retention.hours
    applies.
log.retention.hours int 168 -
    Age after which a segment is deleted if log.retention.ms and log.retention.minutes are unset. -1
    means never.
log.retention.bytes long -1 - cluster-wide
    Maximum size of a partition. The oldest segments are deleted above it. -1 means no limit.
log.retention.check.interval.ms long 300000 1..
    Interval of the check for segments to delete.
log.segment.delete.delay.ms long 60000 0.. cluster-wide
    Delay between the removal of a segment from the log and the deletion of its files.
log.cleanup.policy list delete compact|delete cluster-wide
    Policy for old segments: delete, compact, or both. If empty, segments are kept.
log.index.size.max.bytes int 10485760 4.. cluster-wide
    Maximum size of a segment's offset index.
log.index.interval.bytes int 4096 0.. cluster-wide
    Bytes of log between two entries of the offset index.
log.preallocate boolean false - cluster-wide
    Whether a new segment reserves its full size on disk.
log.flush.interval.messages long long-max 1.. cluster-wide
    Number of records of a partition after which the log is synced to disk.
log.flush.interval.ms long - - cluster-wide
    Maximum time until records are synced to disk. If unset, log.flush.scheduler.interval.ms
    applies.
log.flush.scheduler.interval.ms long long-max -
    Maximum time until records are synced to disk if log.flush.interval.ms is unset.
shoal.log.stray.retention.ms long -1 -1..
    Milliseconds for which a broker keeps a log that the metadata does not know. When it starts, it
    renames such directories to -stray. They are of topics that were deleted while it was down, or
    of metadata that was lost. -1 means that they are kept until you remove them.
shoal.log.dir.max.bytes long long-max 1..
    Maximum size of the logs of this broker. While they have as many bytes, produce requests for
    other than internal topics are refused with KAFKA_STORAGE_ERROR, which clients retry. Records
    that followers copy are not refused.
shoal.log.flush.group.commit boolean false - cluster-wide
    Whether the broker syncs records to disk before it acknowledges them. Many requests share one
    sync.
log.flush.offset.checkpoint.interval.ms int 60000 0..
    Interval at which the broker writes recovery points.
log.message.timestamp.type string CreateTime CreateTime|LogAppendTime cluster-wide
    Timestamps of records: the producer's (CreateTime) or the broker's (LogAppendTime).
log.message.timestamp.before.max.ms long long-max 0.. cluster-wide
    Maximum time by which a record's timestamp may be behind the broker's clock.
log.message.timestamp.after.max.ms long 3600000 0.. cluster-wide
    Maximum time by which a record's timestamp may be ahead of the broker's clock.
log.cleaner.enable boolean true -
    Whether logs are compacted.
log.cleaner.backoff.ms long 15000 0.. cluster-wide
    Pause before the next check if no log needs compaction.
log.cleaner.dedupe.buffer.size long 134217728 - cluster-wide
    Bytes of memory for the keys of a compaction.
log.cleaner.io.max.bytes.per.second double double-max 1.. cluster-wide
    Maximum rate of compaction's reads and writes together.
log.cleaner.min.cleanable.ratio double 0.5 0..1 cluster-wide
    Minimum ratio of uncompacted to total bytes of a log for its compaction.
log.cleaner.min.compaction.lag.ms long 0 0.. cluster-wide
    Minimum age of a record before compaction may remove it.
log.cleaner.max.compaction.lag.ms long long-max 1.. cluster-wide
    Maximum time that a record stays uncompacted.
log.cleaner.delete.retention.ms long 86400000 0.. cluster-wide
    Time that a compacted log keeps tombstones.
# applied: Producers
producer.id.expiration.ms int 86400000 1.. cluster-wide
    Time without writes after which the broker drops an idempotent producer's state.
producer.id.expiration.check.interval.ms int 600000 1.. internal
    Interval of the check for expired producer ids.
# applied: Offsets of groups
offsets.topic.num.partitions int 50 1..
    Partitions of __consumer_offsets. The number is fixed once the topic exists.
offsets.topic.replication.factor short 3 1..
    Replicas of __consumer_offsets, limited by the number of brokers.
offsets.topic.segment.bytes int 104857600 1..
    Segment size of __consumer_offsets.
offsets.topic.compression.codec int 0 0..4
    Codec of batches in __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
offsets.retention.minutes int 10080 1..
    Time that the broker keeps the offsets of a group without members.
offsets.retention.check.interval.ms long 600000 1..
    Interval of the check for expired offsets.
offset.metadata.max.bytes int 4096 -
    Maximum size of the metadata of a committed offset.
offsets.commit.timeout.ms int 5000 1..
    Timeout for the write of an offset commit.
# applied: Transactions
transaction.state.log.num.partitions int 50 1..
    Partitions of __transaction_state. The number is fixed once the topic exists.
transaction.state.log.replication.factor short 3 1..
    Replicas of __transaction_state, limited by the number of brokers.
transaction.state.log.segment.bytes int 104857600 1..
    Segment size of __transaction_state.
transaction.max.timeout.ms int 900000 1..
    Maximum transaction timeout that a producer may request.
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 1..
    Interval of the check for expired transactional ids.
transaction.partition.verification.enable boolean true - cluster-wide
    Whether a write checks that its partition belongs to the transaction.
transactional.id.expiration.ms int 604800000 1..
    Time without use after which a transactional id is dropped.
add.partitions.to.txn.retry.backoff.max.ms int 100 0..
    Maximum wait of a write for the end of its producer's previous transaction.
# applied: Classic groups
group.initial.rebalance.delay.ms int 3000 -
    Time that a new group waits for more members before its first rebalance.
group.min.session.timeout.ms int 6000 -
    Minimum session timeout that a classic member may request.
group.max.session.timeout.ms int 1800000 -
    Maximum session timeout that a classic member may request.
group.max.size int int-max 1..
    Maximum number of members of a classic group.
# applied: Consumer groups (KIP-848)
group.consumer.assignors list uniform,range uniform|range
    Server-side assignors. Members that name none use the first.
group.consumer.max.size int int-max 1..
    Maximum number of members of a consumer group.
group.consumer.migration.policy string bidirectional ~disabled|downgrade|upgrade|bidirectional
    Whether a group may switch between the classic and the consumer protocol.
group.consumer.session.timeout.ms int 45000 1..
    Time without a heartbeat after which the group removes a member.
group.consumer.min.session.timeout.ms int 45000 1..
    Minimum of a group's consumer.session.timeout.ms.
group.consumer.max.session.timeout.ms int 60000 1..
    Maximum of a group's consumer.session.timeout.ms.
group.consumer.heartbeat.interval.ms int 5000 1..
    Interval of a member's heartbeats.
group.consumer.min.heartbeat.interval.ms int 5000 1..
    Minimum of a group's consumer.heartbeat.interval.ms.
group.consumer.max.heartbeat.interval.ms int 15000 1..
    Maximum of a group's consumer.heartbeat.interval.ms.
group.consumer.assignment.interval.ms int 1000 0.. cluster-wide
    Minimum time between two assignments of a group.
group.consumer.min.assignment.interval.ms int 0 0..
    Minimum of a group's consumer.assignment.interval.ms.
group.consumer.max.assignment.interval.ms int 15000 0..
    Maximum of a group's consumer.assignment.interval.ms.
# applied: Share groups (KIP-932)
group.share.assignors list leader leader|simple
    Assignors of share groups, of which the first is used. `leader` gives a member partitions of as
    few leaders as balance allows, since a client waits at one broker at a time. `simple` ignores
    leaders.
group.share.max.size int 200 1..10000
    Maximum number of members of a share group.
group.share.max.share.sessions int 2000 1..
    Maximum number of share sessions on this broker. It must be at least group.share.max.size.
group.share.session.timeout.ms int 45000 1..
    Time without a heartbeat after which the group removes a member.
group.share.min.session.timeout.ms int 45000 1..
    Minimum of a group's share.session.timeout.ms.
group.share.max.session.timeout.ms int 60000 1..
    Maximum of a group's share.session.timeout.ms.
group.share.heartbeat.interval.ms int 5000 1..
    Interval of a member's heartbeats.
group.share.min.heartbeat.interval.ms int 5000 1..
    Minimum of a group's share.heartbeat.interval.ms.
group.share.max.heartbeat.interval.ms int 15000 1..
    Maximum of a group's share.heartbeat.interval.ms.
group.share.assignment.interval.ms int 1000 0.. cluster-wide
    Minimum time between two assignments of a group.
group.share.min.assignment.interval.ms int 0 0..
    Minimum of a group's share.assignment.interval.ms.
group.share.max.assignment.interval.ms int 15000 0..
    Maximum of a group's share.assignment.interval.ms.
group.share.record.lock.duration.ms int 30000 1000..3600000
    Time that a member holds the lock of an acquired record. The record is then available again.
group.share.min.record.lock.duration.ms int 15000 1000..30000
    Minimum of a group's share.record.lock.duration.ms.
group.share.max.record.lock.duration.ms int 60000 30000..3600000
    Maximum of a group's share.record.lock.duration.ms.
group.share.delivery.count.limit int 5 2..10
    Number of deliveries after which a record is archived.
group.share.min.delivery.count.limit int 2 2..5
    Minimum of a group's share.delivery.count.limit.
group.share.max.delivery.count.limit int 10 5..25
    Maximum of a group's share.delivery.count.limit.
group.share.partition.max.record.locks int 2000 100..10000
    Maximum number of records in flight in a share partition.
group.share.min.partition.max.record.locks int 100 100..2000
    Minimum of a group's share.partition.max.record.locks.
group.share.max.partition.max.record.locks int 4000 2000..10000
    Maximum of a group's share.partition.max.record.locks.
group.share.initialize.retry.interval.ms int 30000 1.. internal
    Pause before the initialization of a share partition is retried.
errors.deadletterqueue.auto.create.topics.enable boolean false - cluster-wide
    Whether the first dead letter of a share group creates the dead-letter topic (KIP-1191).
errors.deadletterqueue.topic.name.prefix string dlq. - cluster-wide
    Required prefix of the names of dead-letter topics.
shoal.group.consumer.individual.commit.enable boolean true -
    Whether members of consumer groups may commit records individually.
shoal.group.consumer.individual.commit.max.ranges int 10000 1..30000
    Maximum number of ranges of finished offsets above the stable offset of a partition, and in one
    request. A member at the limit takes no new records until it has finished the lowest one.
shoal.group.consumer.key.ranges.enable boolean true -
    Whether members of consumer groups may share partitions by key ranges, in topics with
    shoal.key.ranges.enable.
shoal.group.consumer.key.ranges.balance.interval.ms int 10000 0..
    Time for which the load of key ranges is measured. The boundaries between members move if that
    was worth it three times in a row. 0 means that the boundaries do not follow the load.
shoal.group.consumer.connection.lost.grace.ms int 300 0..
    Time that a member with key ranges may be without a connection. Others then get its ranges. 0
    means that only the session timeout applies.
shoal.group.consumer.takeover.heartbeat.interval.ms int 300 0..
    Heartbeat interval of members with key ranges, so that they soon take over from a dead one, if
    consumer.heartbeat.interval.ms is longer. 0 means that only the latter applies. A group gets at
    most 1,000 heartbeats per second.
shoal.group.share.connection.lost.grace.ms int 300 0..
    Time that a share member may be without a connection. Its locks are then released.
shoal.group.share.takeover.heartbeat.interval.ms int 400 0..
    Heartbeat interval per reader of the partition with the fewest readers, so that members soon
    take over from a dead one. 0 means that share.heartbeat.interval.ms applies. A group gets at
    most 1,000 heartbeats per second.
share.coordinator.state.topic.num.partitions int 50 1..
    Partitions of __share_group_state. The number is fixed once the topic exists.
share.coordinator.state.topic.replication.factor short 3 1..
    Replicas of __share_group_state, limited by the number of brokers.
share.coordinator.state.topic.segment.bytes int 104857600 1..
    Segment size of __share_group_state.
share.coordinator.state.topic.compression.codec int 0 0..4
    Codec of batches in __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
share.coordinator.state.topic.prune.interval.ms int 300000 1.. internal
    Interval at which records that newer snapshots replace are removed.
share.coordinator.snapshot.update.records.per.snapshot int 500 0..500
    Number of updates of a share partition's state after which a snapshot is written.
share.coordinator.cold.partition.snapshot.interval.ms int 300000 1.. internal
    Time without writes after which a share partition gets a new snapshot.
share.coordinator.write.timeout.ms int 5000 1..
    Timeout for a write of share-group state.
# applied: Streams groups (KIP-1071)
group.streams.max.size int int-max 1..
    Maximum number of members of a streams group.
shoal.group.streams.connection.lost.grace.ms int 2000 0..
    Time after the heartbeat interval at which a streams member that has lost its connection is
    removed. 0 means that only the session timeout applies.
group.streams.session.timeout.ms int 45000 1..
    Time without a heartbeat after which the group removes a member.
group.streams.min.session.timeout.ms int 45000 1..
    Minimum of a group's streams.session.timeout.ms.
group.streams.max.session.timeout.ms int 60000 1..
    Maximum of a group's streams.session.timeout.ms.
group.streams.heartbeat.interval.ms int 5000 1..
    Interval of a member's heartbeats.
group.streams.min.heartbeat.interval.ms int 5000 1..
    Minimum of a group's streams.heartbeat.interval.ms.
group.streams.max.heartbeat.interval.ms int 15000 1..
    Maximum of a group's streams.heartbeat.interval.ms.
group.streams.assignment.interval.ms int 1000 0.. cluster-wide
    Minimum time between two assignments of a group.
group.streams.min.assignment.interval.ms int 0 0..
    Minimum of a group's streams.assignment.interval.ms.
group.streams.max.assignment.interval.ms int 15000 0..
    Maximum of a group's streams.assignment.interval.ms.
group.streams.task.offset.interval.ms int 60000 1.. internal
    Interval at which a member reports the offsets of its tasks.
group.streams.min.task.offset.interval.ms int 15000 1.. internal
    Minimum of a group's streams.task.offset.interval.ms.
group.streams.initial.rebalance.delay.ms int 3000 0..
    Time that a new group waits for more members.
group.streams.num.standby.replicas int 0 0..
    Standby replicas of a task.
group.streams.max.standby.replicas int 2 0..
    Maximum of a group's streams.num.standby.replicas.
# applied: Telemetry
telemetry.max.bytes int 1048576 1..
    Maximum size of the metrics in one push of a client (KIP-714).
""",
    CLUSTER,
    SASL,
    TLS,
    ACCEPTED,
)
