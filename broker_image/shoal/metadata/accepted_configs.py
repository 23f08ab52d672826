"""Broker configs that Kafka 4.3.1 documents and that are accepted without effect, or refused.

Accepted are those that tune what is not here and promise nothing to anybody; refused, unless at
their default, are those whose absence a user has to know of: credentials, policies, tiering.
"""

from __future__ import annotations

from shoal.metadata.config_keys import table

ACCEPTED = table(
    """
# accepted: Threads and buffers: one event loop does the work
log.flush.start.offset.checkpoint.interval.ms int 60000 0..
    Milliseconds between two writes of the log start offsets; here they are written with the
    recovery points.
replica.high.watermark.checkpoint.interval.ms long 5000 -
    Milliseconds between two writes of the high watermarks; here they are written with the
    recovery points.
log.initial.task.delay.ms long 30000 0.. internal
    Milliseconds after start before the first background work on logs.
group.coordinator.rebalance.protocols list classic,consumer consumer|classic|share|streams
    Group protocols in use; here classic, consumer and share always are.
group.share.assignors list simple simple
    Assignor of share groups; here it is simple.
num.network.threads int 3 1.. cluster-wide
    Threads that read and write the network; here one event loop does.
num.io.threads int 8 1.. cluster-wide
    Threads that work on requests; here one event loop does.
background.threads int 10 1.. cluster-wide
    Threads for background work; here one event loop does.
num.recovery.threads.per.data.dir int 2 1.. cluster-wide
    Threads that recover logs at start; here it is one.
log.cleaner.threads int 1 0.. cluster-wide
    Threads that compact logs; here compaction runs in steps between requests.
log.cleaner.io.buffer.size int 524288 0.. cluster-wide
    Bytes of compaction's read and write buffers; here it is sized by the segment.
log.cleaner.io.buffer.load.factor double 0.9 - cluster-wide
    How full compaction's key map may get; here the map grows in its memory bound.
group.consumer.regex.refresh.interval.ms int 600000 10000.. internal
    Milliseconds between two evaluations of a subscribed pattern; here it is evaluated whenever
    topics change.
group.coordinator.threads int 4 1..
    Threads that work on groups; here one event loop does.
group.coordinator.background.threads int 2 1..
    Threads that compute assignments; here one event loop does.
group.coordinator.append.linger.ms int -1 -1..
    Milliseconds that group writes wait for more; here those of one turn of the event loop are
    one batch.
group.coordinator.cached.buffer.max.bytes int 1048588 524288.. cluster-wide
    Bytes of write buffer kept for a group partition; here none is kept.
share.coordinator.threads int 1 1..
    Threads that work on share-group state; here one event loop does.
share.coordinator.append.linger.ms int -1 -1..
    Milliseconds that share-state writes wait for more; here those of one turn of the event
    loop are one batch.
share.coordinator.cached.buffer.max.bytes int 1048588 524288.. cluster-wide
    Bytes of write buffer kept for a share-state partition; here none is kept.
share.coordinator.load.buffer.size int 5242880 1..
    Bytes read at a time when share-group state is loaded.
offsets.load.buffer.size int 5242880 1..
    Bytes read at a time when offsets are loaded.
fetch.purgatory.purge.interval.requests int 1000 -
    Fetches after which finished waits are swept; here they leave at once.
producer.purgatory.purge.interval.requests int 1000 -
    Produces after which finished waits are swept; here they leave at once.
delete.records.purgatory.purge.interval.requests int 1 -
    DeleteRecords after which finished waits are swept; here they leave at once.
share.fetch.purgatory.purge.interval.requests int 1000 -
    Share fetches after which finished waits are swept; here they leave at once.
server.max.startup.time.ms long long-max 0.. internal
    Milliseconds that start-up may take.
group.share.persister.class.name string - - internal
    = org.apache.kafka.server.share.persister.DefaultStatePersister
    Java class that stores share-group state.
kafka.metrics.polling.interval.secs int 10 1..
    Seconds between two polls of Java metrics reporters.
kafka.metrics.reporters list "" -
    Java classes that report metrics; here metrics are served for Prometheus.
metric.reporters list - - cluster-wide
    = org.apache.kafka.common.metrics.JmxReporter
    Java classes that report metrics; here metrics are served for Prometheus.
metrics.num.samples int 2 1..
    Samples that a rate is computed over; here Prometheus computes rates.
metrics.recording.level string INFO -
    Least level of the metrics that are recorded; here all are.
metrics.sample.window.ms long 30000 1..
    Milliseconds of a sample; here Prometheus computes rates.
unstable.api.versions.enable boolean false - internal
    Whether unreleased API versions are served; here none are.
unstable.feature.versions.enable boolean false - internal
    Whether unreleased feature versions can be used; here none can.
# accepted: Replication and the metadata quorum
num.replica.alter.log.dirs.threads int - -
    Threads that move replicas between directories; here a broker has one directory.
replica.socket.receive.buffer.bytes int 65536 -
    Bytes of a follower's receive buffer.
controller.socket.timeout.ms int 30000 -
    Milliseconds that a broker waits for the controller's answer.
controller.quorum.append.linger.ms int 25 0..
    Milliseconds that metadata writes wait for more.
controller.performance.always.log.threshold.ms long 2000 0.. internal
    Milliseconds above which a controller event is logged.
controller.performance.sample.period.ms long 60000 100.. internal
    Milliseconds between two reports of slow controller events.
early.start.listeners list - -
    Listeners that are opened before the broker is unfenced.
metadata.log.dir string - -
    Directory of the metadata log; here it is with the other logs.
metadata.log.segment.bytes int 1073741824 8388608..
    Bytes of a segment of the metadata log.
metadata.log.segment.ms long 604800000 -
    Milliseconds after which a segment of the metadata log is closed.
metadata.max.idle.interval.ms int 500 0..
    Milliseconds between the empty records that an idle controller writes.
internal.metadata.delete.delay.millis long 60000 - internal
    Milliseconds before files of the metadata log are deleted.
internal.metadata.log.segment.bytes int - - internal
    Bytes of a segment of the metadata log, for tests.
internal.metadata.max.batch.size.in.bytes int 8388608 - internal
    Bytes of a batch of metadata records.
log.dir.failure.timeout.ms long 30000 1..
    Milliseconds that a broker with a failed directory may be out of touch.
alter.log.dirs.replication.quota.window.num int 11 1..
    Samples of the throttle between directories.
alter.log.dirs.replication.quota.window.size.seconds int 1 1..
    Seconds of a sample of the throttle between directories.
replica.alter.log.dirs.io.max.bytes.per.second long long-max 0.. cluster-wide
    Bytes a second for moving replicas between directories.
# accepted: Transactions
transaction.state.log.load.buffer.size int 5242880 1..
    Bytes read at a time when transactions are loaded.
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 1..
    Milliseconds between two searches for transactions that timed out.
add.partitions.to.txn.retry.backoff.ms int 20 1..
    Milliseconds before the check of a transaction is tried again, at first.
# accepted: Streams groups: their protocol is not served
group.streams.max.size int int-max 1..
    Members that a streams group may have.
group.streams.session.timeout.ms int 45000 1..
    Milliseconds without heartbeat after which a member is out.
group.streams.min.session.timeout.ms int 45000 1..
    Least value of a group's streams.session.timeout.ms.
group.streams.max.session.timeout.ms int 60000 1..
    Greatest value of a group's streams.session.timeout.ms.
group.streams.heartbeat.interval.ms int 5000 1..
    Milliseconds between the heartbeats of a member.
group.streams.min.heartbeat.interval.ms int 5000 1..
    Least value of a group's streams.heartbeat.interval.ms.
group.streams.max.heartbeat.interval.ms int 15000 1..
    Greatest value of a group's streams.heartbeat.interval.ms.
group.streams.assignment.interval.ms int 1000 0.. cluster-wide
    Milliseconds, at least, between two assignments of a group.
group.streams.min.assignment.interval.ms int 0 0..
    Least value of a group's streams.assignment.interval.ms.
group.streams.max.assignment.interval.ms int 15000 0..
    Greatest value of a group's streams.assignment.interval.ms.
group.streams.initial.rebalance.delay.ms int 3000 0..
    Milliseconds that a new group waits for more members.
group.streams.num.standby.replicas int 0 0..
    Standby replicas of a task.
group.streams.max.standby.replicas int 2 0..
    Greatest value of a group's streams.num.standby.replicas.
# accepted: Tiered storage, without remote.log.storage.system.enable
log.local.retention.bytes long -2 -2.. cluster-wide
    Bytes of a tiered partition that stay on local disk; -2 follows log.retention.bytes.
log.local.retention.ms long -2 -2.. cluster-wide
    Milliseconds that a tiered segment stays on local disk; -2 follows log.retention.ms.
follower.fetch.last.tiered.offset.enable boolean false - cluster-wide
    Whether a new follower starts at the last tiered offset.
remote.fetch.max.wait.ms int 500 1.. cluster-wide
    Milliseconds that a fetch may wait for the remote store.
remote.list.offsets.request.timeout.ms long 30000 1.. cluster-wide
    Milliseconds that ListOffsets may wait for the remote store.
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. cluster-wide
    Bytes of remote indexes kept on local disk.
remote.log.index.file.cache.ttl.ms long 900000 -1.. internal
    Milliseconds that a remote index is kept on local disk.
remote.log.manager.copier.thread.pool.size int 10 1.. cluster-wide
    Threads that copy segments to the remote store.
remote.log.manager.copy.max.bytes.per.second long long-max 1.. cluster-wide
    Bytes a second that may be copied to the remote store.
remote.log.manager.copy.quota.window.num int 11 1..
    Samples of the copy limit.
remote.log.manager.copy.quota.window.size.seconds int 1 1..
    Seconds of a sample of the copy limit.
remote.log.manager.expiration.thread.pool.size int 10 1.. cluster-wide
    Threads that delete remote segments.
remote.log.manager.fetch.max.bytes.per.second long long-max 1.. cluster-wide
    Bytes a second that may be fetched from the remote store.
remote.log.manager.fetch.quota.window.num int 11 1..
    Samples of the fetch limit.
remote.log.manager.fetch.quota.window.size.seconds int 1 1..
    Seconds of a sample of the fetch limit.
remote.log.manager.follower.thread.pool.size int 2 1.. cluster-wide
    Threads that read remote metadata for followers.
remote.log.manager.task.interval.ms long 30000 1..
    Milliseconds between two runs of a remote log task.
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. internal
    Milliseconds before a remote task is tried again, at most.
remote.log.manager.task.retry.backoff.ms long 500 1.. internal
    Milliseconds before a remote task is tried again, at first.
remote.log.manager.task.retry.jitter double 0.2 0..0.5 internal
    Share of the back-off that is random.
remote.log.manager.thread.pool.size int 2 1..
    Threads of remote log tasks.
remote.log.metadata.custom.metadata.max.bytes int 128 0..
    Bytes of custom metadata of a remote segment.
remote.log.metadata.manager.class.name string - -
    = org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
    Java class that keeps the metadata of remote segments.
remote.log.metadata.manager.class.path string - -
    Class path of remote.log.metadata.manager.class.name.
remote.log.metadata.manager.impl.prefix string rlmm.config. -
    Prefix of the configs given to remote.log.metadata.manager.class.name.
remote.log.metadata.manager.listener.name string - -
    Listener that remote.log.metadata.manager.class.name connects to.
remote.log.reader.max.pending.tasks int 100 1..
    Remote reads that may wait.
remote.log.reader.threads int 10 1.. cluster-wide
    Threads that read from the remote store.
remote.log.storage.manager.class.name string - -
    Java class that stores remote segments.
remote.log.storage.manager.class.path string - -
    Class path of remote.log.storage.manager.class.name.
remote.log.storage.manager.impl.prefix string rsm.config. -
    Prefix of the configs given to remote.log.storage.manager.class.name.
# refused: What would promise a part that is not here
security.inter.broker.protocol string PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
    TLS and SASL are not part of this broker.
remote.log.storage.system.enable boolean false -
    Tiered storage is not part of this broker.
transaction.two.phase.commit.enable boolean false -
    Two-phase commit (KIP-939) is not part of this broker.
cordoned.log.dirs list "" - per-broker
    A broker has one log directory, so none can be cordoned.
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
authorizer.class.name string "" -
    Authorization is not part of this broker.
delegation.token.secret.key password - -
    Delegation tokens are not part of this broker.
# accepted: Delegation tokens, without delegation.token.secret.key
delegation.token.expiry.check.interval.ms long 3600000 1..
    Milliseconds between two searches for expired tokens.
delegation.token.expiry.time.ms long 86400000 1..
    Milliseconds before a token has to be renewed.
delegation.token.max.lifetime.ms long 604800000 1..
    Milliseconds after which a token cannot be renewed.
# refused: TLS: listeners are PLAINTEXT
ssl.keystore.location string - - per-broker
    TLS is not part of this broker; a keystore would be ignored.
ssl.keystore.password password - - per-broker
    TLS is not part of this broker; a keystore would be ignored.
ssl.keystore.key password - - per-broker
    TLS is not part of this broker; a private key would be ignored.
ssl.keystore.certificate.chain password - - per-broker
    TLS is not part of this broker; certificates would be ignored.
ssl.key.password password - - per-broker
    TLS is not part of this broker; a private key would be ignored.
ssl.truststore.location string - - per-broker
    TLS is not part of this broker; a truststore would be ignored.
ssl.truststore.password password - - per-broker
    TLS is not part of this broker; a truststore would be ignored.
ssl.truststore.certificates password - - per-broker
    TLS is not part of this broker; certificates would be ignored.
ssl.client.auth string none required|requested|none per-broker
    TLS is not part of this broker, so clients cannot be made to show certificates.
ssl.engine.factory.class class - - per-broker
    Java TLS engines cannot be loaded.
# accepted: TLS details, without a keystore
ssl.allow.dn.changes boolean false -
    Whether a new keystore may have another distinguished name.
ssl.allow.san.changes boolean false -
    Whether a new keystore may lack alternative names of the old one.
ssl.cipher.suites list "" - per-broker
    Cipher suites that TLS may use.
ssl.enabled.protocols list TLSv1.2,TLSv1.3 - per-broker
    TLS versions that may be used.
ssl.endpoint.identification.algorithm string https - per-broker
    How a server's name is checked against its certificate.
ssl.keymanager.algorithm string SunX509 - per-broker
    Java key manager algorithm.
ssl.keystore.type string JKS - per-broker
    Format of the keystore.
ssl.principal.mapping.rules string DEFAULT -
    Rules from a certificate's distinguished name to a user name.
ssl.protocol string TLSv1.3 - per-broker
    TLS version that is preferred.
ssl.provider string - - per-broker
    Java security provider of TLS.
ssl.secure.random.implementation string - - per-broker
    Java random generator of TLS.
ssl.trustmanager.algorithm string PKIX - per-broker
    Java trust manager algorithm.
ssl.truststore.type string JKS - per-broker
    Format of the truststore.
# refused: SASL: listeners are PLAINTEXT
sasl.jaas.config password - - per-broker
    SASL is not part of this broker; credentials would be ignored.
sasl.client.callback.handler.class class - -
    Java callback handlers cannot be loaded.
sasl.login.callback.handler.class class - -
    Java callback handlers cannot be loaded.
sasl.login.class class - -
    Java login classes cannot be loaded.
sasl.server.callback.handler.class class - -
    Java callback handlers cannot be loaded.
connections.max.reauth.ms long 0 -
    SASL is not part of this broker, so sessions cannot be made to authenticate again.
# accepted: SASL details, without SASL listeners
sasl.enabled.mechanisms list GSSAPI - per-broker
    SASL mechanisms that clients may use.
sasl.mechanism.controller.protocol string GSSAPI -
    SASL mechanism towards controllers.
sasl.mechanism.inter.broker.protocol string GSSAPI - per-broker
    SASL mechanism between brokers.
sasl.server.max.receive.size int 524288 -
    Bytes of one SASL message, at most.
connection.failed.authentication.delay.ms int 100 0..
    Milliseconds before the answer to a failed authentication.
sasl.kerberos.kinit.cmd string /usr/bin/kinit - per-broker
    Path of kinit.
sasl.kerberos.min.time.before.relogin long 60000 - per-broker
    Milliseconds, at least, between two Kerberos logins.
sasl.kerberos.principal.to.local.rules list DEFAULT - per-broker
    Rules from Kerberos principals to user names.
sasl.kerberos.service.name string - - per-broker
    Kerberos service name of brokers.
sasl.kerberos.ticket.renew.jitter double 0.05 - per-broker
    Share of a ticket's life that is random in its renewal.
sasl.kerberos.ticket.renew.window.factor double 0.8 - per-broker
    Share of a ticket's life after which it is renewed.
sasl.login.connect.timeout.ms int - -
    Milliseconds to connect to an OAuth provider.
sasl.login.read.timeout.ms int - -
    Milliseconds to wait for an OAuth provider.
sasl.login.refresh.buffer.seconds short 300 - per-broker
    Seconds before its end at which a token is renewed at the latest.
sasl.login.refresh.min.period.seconds short 60 - per-broker
    Seconds, at least, between two renewals of a token.
sasl.login.refresh.window.factor double 0.8 - per-broker
    Share of a token's life after which it is renewed.
sasl.login.refresh.window.jitter double 0.05 - per-broker
    Share of a token's life that is random in its renewal.
sasl.login.retry.backoff.max.ms long 10000 -
    Milliseconds between two tries to reach an OAuth provider, at most.
sasl.login.retry.backoff.ms long 100 -
    Milliseconds between two tries to reach an OAuth provider, at first.
sasl.oauthbearer.assertion.algorithm string RS256 ~ES256|RS256
    Signing algorithm of an OAuth assertion.
sasl.oauthbearer.assertion.claim.aud string - -
    Audience claim of an OAuth assertion.
sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
    Seconds that an OAuth assertion is valid.
sasl.oauthbearer.assertion.claim.iss string - -
    Issuer claim of an OAuth assertion.
sasl.oauthbearer.assertion.claim.jti.include boolean false -
    Whether an OAuth assertion has an id claim.
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
    Seconds that an OAuth assertion's start lies back.
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
sasl.oauthbearer.clock.skew.seconds int 30 -
    Seconds that clocks may differ when a token is checked.
sasl.oauthbearer.expected.audience list "" -
    Audiences of which a token has to name one.
sasl.oauthbearer.expected.issuer string - -
    Issuer that a token has to name.
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 -
    Milliseconds between two reads of the key set.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 -
    Milliseconds between two tries to read the key set, at most.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 -
    Milliseconds between two tries to read the key set, at first.
sasl.oauthbearer.jwks.endpoint.url string - -
    Address of the provider's key set.
sasl.oauthbearer.jwt.retriever.class class - -
    = org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    Java class that gets tokens.
sasl.oauthbearer.jwt.validator.class class - -
    = org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    Java class that checks tokens.
sasl.oauthbearer.scope string - -
    Scope asked of the OAuth provider.
sasl.oauthbearer.scope.claim.name string scope -
    Name of the scope claim.
sasl.oauthbearer.sub.claim.name string sub -
    Name of the subject claim.
sasl.oauthbearer.token.endpoint.url string - -
    Address of the provider's token endpoint.
"""
)
