"""Broker configs of Kafka 4.4.0 that this broker accepts without effect, or refuses.

It accepts configs that tune machinery it does not have. It refuses values other than the default if
the feature is missing and users must know: credentials, policies, tiered storage.
"""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table

ACCEPTED = parse_table(
    """
# accepted: Threads and buffers
log.flush.start.offset.checkpoint.interval.ms int 60000 0..
    Interval at which Kafka writes log start offsets. Shoal writes them with the recovery points.
replica.high.watermark.checkpoint.interval.ms long 5000 -
    Interval at which Kafka writes high watermarks. Shoal writes them with the recovery points.
log.initial.task.delay.ms long 30000 0.. internal
    Delay between the start and the first background work on logs.
group.coordinator.rebalance.protocols list - consumer|classic|share|streams
    = classic,consumer,streams
    Enabled group protocols. Shoal always enables all of them.
group.streams.assignors list sticky sticky
    Assignor of streams groups. Shoal uses sticky.
group.consumer.assignor.offload.enable boolean true - cluster-wide internal
    Whether a thread of its own computes assignments. Shoal uses one event loop.
group.share.assignor.offload.enable boolean true - cluster-wide internal
    Whether a thread of its own computes assignments. Shoal uses one event loop.
group.streams.assignor.offload.enable boolean true - cluster-wide internal
    Whether a thread of its own computes assignments. Shoal uses one event loop.
group.streams.num.warmup.replicas int 2 0.. internal
    Maximum number of warm-up tasks. Shoal makes none.
group.streams.max.warmup.replicas int 20 0.. internal
    Maximum of a group's streams.num.warmup.replicas.
group.streams.acceptable.recovery.lag long 10000 0.. internal
    Lag of a copy of a state at which its task may move there. Tasks of Shoal move at once.
num.network.threads int 3 1.. cluster-wide
    Threads for network I/O. Shoal uses one event loop.
num.io.threads int 8 1.. cluster-wide
    Threads that process requests. Shoal uses one event loop.
background.threads int 10 1.. cluster-wide
    Threads for background work. Shoal uses one event loop.
num.recovery.threads.per.data.dir int 2 1.. cluster-wide
    Threads that recover logs at start. Shoal uses one.
log.cleaner.threads int 1 0.. cluster-wide
    Threads that compact logs. Shoal compacts in steps between requests.
log.cleaner.io.buffer.size int 524288 0.. cluster-wide
    Bytes of compaction's read and write buffers. Shoal sizes them by the segment.
log.cleaner.io.buffer.load.factor double 0.9 - cluster-wide
    Load factor of compaction's key map. Shoal's map grows within its memory limit.
group.consumer.regex.refresh.interval.ms int 600000 10000.. internal
    Interval at which Kafka evaluates subscribed patterns. Shoal evaluates them when topics change.
group.coordinator.threads int 4 1..
    Threads of the group coordinator. Shoal uses one event loop.
group.coordinator.background.threads int 2 1..
    Threads that compute assignments. Shoal uses one event loop.
group.coordinator.append.linger.ms int -1 -1..
    Time that the group coordinator collects writes for a batch. Shoal batches the writes of one
    turn of the event loop.
group.coordinator.cached.buffer.max.bytes int 1048588 524288.. cluster-wide
    Maximum size of a cached write buffer of the group coordinator. Shoal caches none.
share.coordinator.threads int 1 1..
    Threads of the share coordinator. Shoal uses one event loop.
share.coordinator.append.linger.ms int -1 -1..
    Time that the share coordinator collects writes for a batch. Shoal batches the writes of one
    turn of the event loop.
share.coordinator.cached.buffer.max.bytes int 1048588 524288.. cluster-wide
    Maximum size of a cached write buffer of the share coordinator. Shoal caches none.
share.coordinator.load.buffer.size int 5242880 1..
    Bytes of one read while share-group state is loaded.
offsets.load.buffer.size int 5242880 1..
    Bytes of one read while offsets are loaded.
fetch.purgatory.purge.interval.requests int 1000 -
    Number of fetches after which Kafka purges completed waits. Shoal removes them at once.
producer.purgatory.purge.interval.requests int 1000 -
    Number of produce requests after which Kafka purges completed waits. Shoal removes them at once.
delete.records.purgatory.purge.interval.requests int 1 -
    Number of DeleteRecords requests after which Kafka purges completed waits. Shoal removes them at
    once.
share.fetch.purgatory.purge.interval.requests int 1000 -
    Number of share fetches after which Kafka purges completed waits. Shoal removes them at once.
server.max.startup.time.ms long long-max 0.. internal
    Maximum duration of the start.
group.share.persister.class.name string - - internal
    = org.apache.kafka.server.share.persister.DefaultStatePersister
    Java class that stores share-group state.
group.share.dlq.manager.class.name string - - internal
    = org.apache.kafka.server.share.dlq.DefaultShareGroupDLQManager
    Java class that writes dead letters.
kafka.metrics.polling.interval.secs int 10 1..
    Polling interval of Java metrics reporters.
kafka.metrics.reporters list "" -
    Java classes that report metrics. Shoal serves metrics for Prometheus.
metric.reporters list - - cluster-wide
    = org.apache.kafka.common.metrics.JmxReporter
    Java classes that report metrics. Shoal serves metrics for Prometheus.
metrics.num.samples int 2 1..
    Number of samples of a rate. Prometheus computes rates.
metrics.recording.level string INFO -
    Minimum level of recorded metrics. Shoal records all.
metrics.sample.window.ms long 30000 1..
    Length of a sample. Prometheus computes rates.
unstable.api.versions.enable boolean false - internal
    Whether unreleased API versions are enabled. There are none in Shoal.
unstable.feature.versions.enable boolean false - internal
    Whether unreleased feature versions are enabled. There are none in Shoal.
# accepted: Replication and the metadata quorum
num.replica.alter.log.dirs.threads int - -
    Threads that move replicas between directories. A broker of Shoal uses one directory.
replica.socket.receive.buffer.bytes int 65536 -
    Size of a follower's receive buffer.
controller.socket.timeout.ms int 30000 -
    Timeout of a broker's requests to the controller.
controller.quorum.append.linger.ms int 25 0..
    Time that the controller collects metadata writes for a batch.
controller.performance.always.log.threshold.ms long 2000 0.. internal
    Duration above which a controller event is logged.
controller.performance.sample.period.ms long 60000 100.. internal
    Interval of the report on slow controller events.
early.start.listeners list - -
    Listeners that open before the broker is unfenced.
metadata.log.dir string - -
    Directory of the metadata log. Shoal uses the directory of the other logs.
metadata.log.segment.bytes int 1073741824 8388608..
    Segment size of the metadata log.
metadata.log.segment.ms long 604800000 -
    Maximum age of the active segment of the metadata log.
metadata.max.idle.interval.ms int 500 0..
    Interval of the empty records that an idle controller writes.
internal.metadata.delete.delay.millis long 60000 - internal
    Delay before files of the metadata log are deleted.
internal.metadata.log.segment.bytes int - - internal
    Segment size of the metadata log, for tests.
internal.metadata.max.batch.size.in.bytes int 8388608 - internal
    Bytes of a batch of metadata records.
log.dir.failure.timeout.ms long 30000 1..
    Time that a broker with a failed directory may be unable to report it.
alter.log.dirs.replication.quota.window.num int 11 1..
    Number of samples of the throttle between directories.
alter.log.dirs.replication.quota.window.size.seconds int 1 1..
    Length of a sample of the throttle between directories.
replica.alter.log.dirs.io.max.bytes.per.second long long-max 0.. cluster-wide
    Maximum rate of moves between directories.
# accepted: Transactions
transaction.state.log.load.buffer.size int 5242880 1..
    Bytes of one read while transactions are loaded.
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 1..
    Interval of the check for transactions that timed out.
add.partitions.to.txn.retry.backoff.ms int 20 1..
    First pause before the check of a transaction is retried.
# accepted: Tiered storage
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. cluster-wide
    Maximum size of cached remote indexes on local disk.
remote.log.index.file.cache.ttl.ms long 900000 -1.. internal
    Time that a cached remote index stays on local disk.
remote.log.manager.copier.thread.pool.size int 10 1.. cluster-wide
    Threads that copy segments to the remote store.
remote.log.manager.expiration.thread.pool.size int 10 1.. cluster-wide
    Threads that delete remote segments.
remote.log.manager.follower.thread.pool.size int 2 1.. cluster-wide
    Threads that read remote metadata for followers.
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. internal
    Maximum pause before a remote task is retried.
remote.log.manager.task.retry.backoff.ms long 500 1.. internal
    First pause before a remote task is retried.
remote.log.manager.task.retry.jitter double 0.2 0..0.5 internal
    Random fraction of the back-off.
remote.log.manager.thread.pool.size int 2 1..
    Threads of remote log tasks.
remote.log.metadata.custom.metadata.max.bytes int 128 0..
    Maximum size of a remote segment's custom metadata.
remote.log.metadata.manager.class.name string - -
    = org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
    Java class that keeps the metadata of remote segments.
remote.log.metadata.manager.class.path string - -
    Class path of remote.log.metadata.manager.class.name.
remote.log.metadata.manager.impl.prefix string rlmm.config. -
    Prefix of the configs for remote.log.metadata.manager.class.name.
remote.log.metadata.manager.listener.name string - -
    Listener that remote.log.metadata.manager.class.name connects to.
remote.log.reader.max.pending.tasks int 100 1..
    Maximum number of pending remote reads.
remote.log.reader.threads int 10 1.. cluster-wide
    Threads that read from the remote store.
remote.log.storage.manager.class.name string - -
    Java class that stores remote segments.
remote.log.storage.manager.class.path string - -
    Class path of remote.log.storage.manager.class.name.
remote.log.storage.manager.impl.prefix string rsm.config. -
    Prefix of the configs for remote.log.storage.manager.class.name.
rlmm.config.remote.log.metadata.topic.retention.ms long -1 -
    Retention of __remote_log_metadata. Shoal keeps the metadata of each segment that is stored.
rlmm.config.remote.log.metadata.consume.wait.ms long 120000 0..
    Time in which a broker has to read the metadata that it wrote.
rlmm.config.remote.log.metadata.initialization.retry.max.timeout.ms long 120000 0..
    Time in which a broker has to begin to read __remote_log_metadata. Shoal tries for ever.
rlmm.config.remote.log.metadata.initialization.retry.interval.ms long 100 0..
    Pause between these attempts.
# refused: Unsupported features
max.decompressed.message.bytes int 2147483639 1..2147483639 cluster-wide
    Maximum size of a record after decompression. Shoal limits a whole batch instead, to 128 MiB.
group.streams.rack.aware.assignment.tags list "" -
    Tags of clients over which standby tasks are spread.
group.streams.topology.description.plugin.class class - -
    Java plugins cannot be loaded.
transaction.two.phase.commit.enable boolean false -
    Two-phase commit (KIP-939) is not supported.
alter.config.policy.class.name class - -
    Java policy classes cannot be loaded.
create.topic.policy.class.name class - -
    Java policy classes cannot be loaded.
client.quota.callback.class class - -
    Java quota classes cannot be loaded.
config.providers list "" - cluster-wide
    Config providers are Java classes and cannot be loaded.
principal.builder.class class - - per-broker
    = org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
    Java principal builders cannot be loaded.
security.providers string - -
    Java security providers cannot be loaded.
# refused: TLS
ssl.engine.factory.class class - - per-broker
    Java TLS engines cannot be loaded.
ssl.provider string - - per-broker
    Java security providers cannot be loaded.
# accepted: TLS details
ssl.keymanager.algorithm string SunX509 - per-broker
    Java key manager algorithm.
ssl.protocol string TLSv1.3 - per-broker
    Java TLS context. As with Kafka, ssl.enabled.protocols decides which versions a listener serves.
ssl.secure.random.implementation string - - per-broker
    Java random generator of TLS.
ssl.trustmanager.algorithm string PKIX - per-broker
    Java trust manager algorithm.
# refused: SASL
sasl.client.callback.handler.class class - -
    Java callback handlers cannot be loaded.
sasl.login.callback.handler.class class - -
    Java callback handlers cannot be loaded.
sasl.login.class class - -
    Java login classes cannot be loaded.
# accepted: SASL details
sasl.oauthbearer.allow.unverified.issuer boolean false -
    Whether tokens of any issuer are taken. Shoal takes them if sasl.oauthbearer.expected.issuer is
    unset.
sasl.mechanism.controller.protocol string GSSAPI -
    SASL mechanism for connections to controllers.
sasl.mechanism.inter.broker.protocol string GSSAPI - per-broker
    SASL mechanism between brokers.
sasl.login.connect.timeout.ms int - -
    Timeout of connections to an OAuth provider.
sasl.login.read.timeout.ms int - -
    Timeout of responses of an OAuth provider.
sasl.login.refresh.buffer.seconds short 300 - per-broker
    Time before its expiry at which a token is renewed at the latest.
sasl.login.refresh.min.period.seconds short 60 - per-broker
    Minimum time between two renewals of a token.
sasl.login.refresh.window.factor double 0.8 - per-broker
    Fraction of a token's lifetime after which it is renewed.
sasl.login.refresh.window.jitter double 0.05 - per-broker
    Random fraction of a token's lifetime in the time of its renewal.
sasl.login.retry.backoff.max.ms long 10000 -
    Maximum pause between two attempts to reach an OAuth provider.
sasl.login.retry.backoff.ms long 100 -
    First pause between two attempts to reach an OAuth provider.
sasl.oauthbearer.assertion.algorithm string RS256 ~ES256|RS256
    Signing algorithm of an OAuth assertion.
sasl.oauthbearer.assertion.claim.aud string - -
    Audience claim of an OAuth assertion.
sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
    Validity of an OAuth assertion.
sasl.oauthbearer.assertion.claim.iss string - -
    Issuer claim of an OAuth assertion.
sasl.oauthbearer.assertion.claim.jti.include boolean false -
    Whether an OAuth assertion contains an id claim.
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
    Time by which the start of an OAuth assertion is in the past.
sasl.oauthbearer.assertion.claim.sub string - -
    Subject claim of an OAuth assertion.
sasl.oauthbearer.assertion.file string - -
    File with a ready OAuth assertion.
sasl.oauthbearer.assertion.private.key.file string - -
    File with the key that signs OAuth assertions.
sasl.oauthbearer.assertion.private.key.passphrase password - -
    Passphrase of the key that signs OAuth assertions.
sasl.oauthbearer.assertion.template.file string - -
    File with claims of OAuth assertions.
sasl.oauthbearer.client.credentials.client.id string - -
    OAuth client id.
sasl.oauthbearer.client.credentials.client.secret password - -
    OAuth client secret.
sasl.oauthbearer.jwt.retriever.class class - -
    = org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    Java class that gets tokens.
sasl.oauthbearer.jwt.validator.class class - -
    = org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    Java class that checks tokens.
sasl.oauthbearer.scope string - -
    Scope that is requested from the OAuth provider.
sasl.oauthbearer.token.endpoint.url string - -
    Address of the provider's token endpoint.
"""
)
