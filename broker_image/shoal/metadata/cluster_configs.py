"""Broker configs of a cluster of several nodes: roles, the metadata quorum, brokers' sessions."""

from __future__ import annotations

from shoal.metadata.config_keys import table

CLUSTER = table(
    """
# applied: The cluster and the metadata quorum
shoal.cluster.id string - -
    Id of the cluster, the same on all its nodes. A new data directory is formatted for it, one of
    another cluster is refused; a broker of its own makes one up.
process.roles list broker,controller broker|controller
    What this node is: broker, controller, or both.
controller.listener.names list - -
    Names of the listeners for controllers; the quorum uses the first that listeners has. If unset,
    the listener CONTROLLER is added at this node's port in controller.quorum.voters.
inter.broker.listener.name string - -
    Name of the listener that brokers use among themselves; the first of listeners if unset.
controller.quorum.voters list "" -
    First voters of the metadata quorum, as id@host:port, the same on all nodes. The port is that of
    the controllers' listener, not that of clients.
controller.quorum.bootstrap.servers list "" -
    Addresses at which the metadata quorum is found by a node that is not among its first voters.
controller.quorum.auto.join.enable boolean false -
    Whether a controller that is no voter joins the voters by itself once it has caught up; one that
    lost its data directory has the voter removed first that it was.
controller.quorum.election.backoff.max.ms int 1000 0..
    Milliseconds, at most, between two elections.
controller.quorum.election.timeout.ms int 1000 0..
    Milliseconds without a leader after which an election starts.
controller.quorum.fetch.max.bytes int 1048576 1..
    Bytes of metadata that a follower asks for at a time.
controller.quorum.fetch.snapshot.max.bytes int 1048576 1..
    Bytes of a metadata snapshot that are asked for at a time.
controller.quorum.fetch.timeout.ms int 2000 0..
    Milliseconds without a fetch after which a leader steps down.
controller.quorum.request.timeout.ms int 2000 0..
    Milliseconds that a quorum request may take.
controller.quorum.retry.backoff.ms int 20 0..
    Milliseconds before a failed quorum request is sent again.
metadata.log.max.record.bytes.between.snapshots long 20971520 1..
    Bytes of metadata records after which a snapshot is written.
metadata.log.max.snapshot.interval.ms long 3600000 0..
    Milliseconds after which a metadata snapshot is written.
metadata.max.retention.bytes long 104857600 -
    Bytes of metadata log and snapshots above which the oldest snapshot is deleted, with the log
    before the next one. The newest snapshot always stays; a negative value sets no limit.
metadata.max.retention.ms long 604800000 -
    Milliseconds after which a metadata snapshot is deleted, with the log before the next one. The
    newest snapshot always stays; a negative value sets no limit.
broker.heartbeat.interval.ms int 2000 -
    Milliseconds between a broker's heartbeats to the controller.
broker.session.timeout.ms int 9000 -
    Milliseconds without heartbeat after which a broker is fenced.
initial.broker.registration.timeout.ms int 60000 -
    Milliseconds that a broker tries to register before it gives up.
controlled.shutdown.enable boolean true -
    Whether a stopping broker hands its leaderships over first.
auto.leader.rebalance.enable boolean true -
    Whether leadership goes back to preferred replicas by itself.
leader.imbalance.check.interval.seconds long 300 1..
    Seconds between two searches for leaders that are not the preferred ones.
unclean.leader.election.enable boolean false - cluster-wide
    Whether a replica out of sync may become leader, losing records, when no other is left.
# applied: Replication
num.replica.fetchers int 1 1.. cluster-wide
    Fetch loops for each broker that leads partitions followed here. Each partition belongs to one.
replica.fetch.backoff.ms int 1000 0..
    Milliseconds that a follower waits after a failed fetch.
replica.fetch.max.bytes int 1048576 0..
    Bytes of one partition that a follower asks for at a time.
replica.fetch.min.bytes int 1 -
    Bytes that a follower waits for.
replica.fetch.response.max.bytes int 10485760 0..
    Bytes that a follower asks for at a time.
replica.fetch.wait.max.ms int 500 -
    Milliseconds that a follower's fetch may wait.
replica.lag.time.max.ms long 30000 -
    Milliseconds that a follower may lag before it leaves the in-sync replicas.
replica.selector.class string - -
    Where it ends in RackAwareReplicaSelector, clients that name a rack read from a replica there.
replica.socket.timeout.ms int 30000 -
    Milliseconds that a follower waits for an answer.
unclean.leader.election.interval.ms long 300000 1.. internal
    Milliseconds between two searches for partitions that need an unclean election.
share.coordinator.state.topic.min.isr short 2 1..
    In-sync replicas that a write to __share_group_state needs; one less than it has replicas, if
    that is fewer.
transaction.state.log.min.isr int 2 1..
    In-sync replicas that a write to __transaction_state needs; one less than it has replicas, if
    that is fewer.
# applied: Throttled replication
leader.replication.throttled.rate long long-max 0.. cluster-wide
    Bytes a second that leaders may send to throttled replicas out of sync.
follower.replication.throttled.rate long long-max 0.. cluster-wide
    Bytes a second that followers may fetch for throttled replicas out of sync.
replication.quota.window.size.seconds int 1 1..
    Seconds' worth of such a rate that may be taken at once.
replication.quota.window.num int 11 1..
    How many times that may be owed, for what replicas in sync have taken.
"""
)
