"""Broker configs of clusters: roles, metadata quorum, broker sessions and replication."""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table

CLUSTER = parse_table(
    """
# applied: The cluster and the metadata quorum
shoal.cluster.id string - -
    Id of the cluster, the same on all its nodes. A new data directory is formatted with it. A data
    directory of another cluster is refused. If unset, a single broker generates one.
process.roles list broker,controller broker|controller
    Roles of this node: broker, controller, or both.
controller.listener.names list - -
    Names of the controller listeners. The quorum uses the first name that is in listeners. If
    unset, the listener CONTROLLER is added at this node's port in controller.quorum.voters.
inter.broker.listener.name string - -
    Name of the listener for traffic between brokers. If unset, the first listener.
security.inter.broker.protocol string PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
    Name of the listener for traffic between brokers, if it equals the name of a security protocol.
    If unset, inter.broker.listener.name applies.
controller.quorum.voters list "" -
    Initial voters of the metadata quorum as id@host:port, the same on all nodes. Name the port of
    the controller listener.
controller.quorum.bootstrap.servers list "" -
    Addresses at which a node that is not an initial voter finds the metadata quorum.
controller.quorum.auto.join.enable boolean false -
    Whether a controller that is not a voter joins the voters once it has caught up. If it lost its
    data directory, its former voter entry is removed first.
controller.quorum.election.backoff.max.ms int 1000 0..
    Maximum pause between two elections.
controller.quorum.election.timeout.ms int 1000 0..
    Time without a leader after which an election starts.
controller.quorum.fetch.max.bytes int 1048576 1..
    Maximum size of one fetch of metadata by a follower.
controller.quorum.fetch.snapshot.max.bytes int 1048576 1..
    Maximum size of one fetch of a metadata snapshot.
controller.quorum.fetch.timeout.ms int 2000 0..
    Time without fetches of a majority after which the leader resigns.
controller.quorum.request.timeout.ms int 2000 0..
    Timeout of a quorum request.
controller.quorum.retry.backoff.ms int 20 0..
    Pause before a failed quorum request is sent again.
metadata.log.max.record.bytes.between.snapshots long 20971520 1..
    Bytes of metadata records after which a snapshot is written.
metadata.log.max.snapshot.interval.ms long 3600000 0..
    Maximum time between two metadata snapshots.
metadata.max.retention.bytes long 104857600 -
    Maximum size of metadata log and snapshots. Above it the oldest snapshot is deleted, with the
    log before the next snapshot. The newest snapshot is always kept. A negative value means no
    limit.
metadata.max.retention.ms long 604800000 -
    Age after which a metadata snapshot is deleted, with the log before the next snapshot. The
    newest snapshot is always kept. A negative value means no limit.
broker.heartbeat.interval.ms int 2000 -
    Interval of a broker's heartbeats to the controller.
broker.session.timeout.ms int 9000 -
    Time without a heartbeat after which the controller fences a broker.
initial.broker.registration.timeout.ms int 60000 -
    Time after which a broker that cannot register stops.
controlled.shutdown.enable boolean true -
    Whether a stopping broker first moves its partition leaders to other brokers.
auto.leader.rebalance.enable boolean true -
    Whether the controller moves leaders back to preferred replicas.
leader.imbalance.check.interval.seconds long 300 1..
    Interval of the check for leaders that are not preferred replicas.
unclean.leader.election.enable boolean false - cluster-wide
    Whether an out-of-sync replica may become leader if no in-sync replica is available. Records may
    be lost.
# applied: Replication
num.replica.fetchers int 1 1.. cluster-wide
    Number of fetch loops per source broker. Each partition belongs to one loop.
replica.fetch.backoff.ms int 1000 0..
    Pause of a follower after a failed fetch.
replica.fetch.max.bytes int 1048576 0..
    Maximum bytes of one partition in a follower's fetch.
replica.fetch.min.bytes int 1 -
    Minimum bytes of a response to a follower's fetch. The leader waits until there are as many.
replica.fetch.response.max.bytes int 10485760 0..
    Maximum bytes of a response to a follower's fetch.
replica.fetch.wait.max.ms int 500 -
    Maximum wait of a follower's fetch.
replica.lag.time.max.ms long 30000 -
    Maximum time that a follower may lag before it leaves the in-sync replicas.
replica.selector.class string - -
    If the name ends in RackAwareReplicaSelector, a client that sends its rack reads from a replica
    in that rack.
replica.socket.timeout.ms int 30000 -
    Timeout of a follower's requests.
unclean.leader.election.interval.ms long 300000 1.. internal
    Interval of the check for partitions that need an unclean election.
share.coordinator.state.topic.min.isr short 2 1..
    In-sync replicas that a write to __share_group_state needs. The limit is one less than the
    topic's replicas.
transaction.state.log.min.isr int 2 1..
    In-sync replicas that a write to __transaction_state needs. The limit is one less than the
    topic's replicas.
# applied: Throttled replication
leader.replication.throttled.rate long long-max 0.. cluster-wide
    Maximum rate at which leaders send to throttled out-of-sync replicas.
follower.replication.throttled.rate long long-max 0.. cluster-wide
    Maximum rate at which followers fetch for throttled out-of-sync replicas.
replication.quota.window.size.seconds int 1 1..
    Seconds of the throttled rate that may be used at once.
replication.quota.window.num int 11 1..
    Maximum debt from traffic of in-sync replicas, as a multiple of
    replication.quota.window.size.seconds.
"""
)
