"""Group configs: KIP-848, KIP-932, KIP-1240, and Shoal's own under "Queues".

Rows have the broker configs of their default (<) and of their bounds ([]).
"""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table

GROUP = parse_table(
    """
# applied: Consumer groups
consumer.session.timeout.ms int 45000 1..
    < group.consumer.session.timeout.ms
    [] group.consumer.min.session.timeout.ms group.consumer.max.session.timeout.ms
    Time without a heartbeat after which the group removes a member.
consumer.heartbeat.interval.ms int 5000 1..
    < group.consumer.heartbeat.interval.ms
    [] group.consumer.min.heartbeat.interval.ms group.consumer.max.heartbeat.interval.ms
    Interval of a member's heartbeats.
consumer.assignment.interval.ms int 1000 0..
    < group.consumer.assignment.interval.ms
    [] group.consumer.min.assignment.interval.ms group.consumer.max.assignment.interval.ms
    Minimum time between two assignments of the group.
# applied: Share groups
share.auto.offset.reset string latest @offset-reset
    Initial position in a share partition: latest, earliest, or by_duration: followed by an ISO 8601
    duration before now.
share.isolation.level string read_uncommitted read_committed|read_uncommitted
    Whether the group delivers all records, or only records of committed transactions.
share.renew.acknowledge.enable boolean true -
    Whether members may renew the lock of a record (KIP-1222).
share.session.timeout.ms int 45000 1..
    < group.share.session.timeout.ms
    [] group.share.min.session.timeout.ms group.share.max.session.timeout.ms
    Time without a heartbeat after which the group removes a member.
share.heartbeat.interval.ms int 5000 1..
    < group.share.heartbeat.interval.ms
    [] group.share.min.heartbeat.interval.ms group.share.max.heartbeat.interval.ms
    Interval of a member's heartbeats.
share.record.lock.duration.ms int 30000 1000..
    < group.share.record.lock.duration.ms
    [] group.share.min.record.lock.duration.ms group.share.max.record.lock.duration.ms
    Time that a member holds the lock of an acquired record. The record is then available again.
share.delivery.count.limit int 5 2..
    < group.share.delivery.count.limit
    [] group.share.min.delivery.count.limit group.share.max.delivery.count.limit
    Number of deliveries after which a record is archived.
share.partition.max.record.locks int 2000 100..
    < group.share.partition.max.record.locks
    [] group.share.min.partition.max.record.locks group.share.max.partition.max.record.locks
    Maximum number of records in flight in a share partition.
share.assignment.interval.ms int 1000 0..
    < group.share.assignment.interval.ms
    [] group.share.min.assignment.interval.ms group.share.max.assignment.interval.ms
    Minimum time between two assignments of the group.
# applied: Queues: Shoal's additions to share groups
share.redelivery.backoff.ms int 0 0..86400000
    Time that a record waits after its first failed delivery (released, or lock expired) before it
    is available again. 0 means no wait.
share.redelivery.backoff.max.ms int 300000 1..86400000
    Maximum of the redelivery back-off.
share.redelivery.backoff.multiplier double 2.0 1..100
    Factor by which the back-off grows with each further delivery.
share.redelivery.backoff.jitter double 0.2 0..1
    Fraction by which the back-off is randomly shortened or lengthened.
share.delivery.paused boolean false -
    Whether delivery to the group's members is paused. Locks still expire, and acknowledgements are
    accepted.
share.ordering string none none|key
    Whether records of one key are delivered in log order, to one member at a time.
share.ordering.key.batch int 1 1..10000
    Maximum number of records of one key in one fetch.
share.ordering.key.dead.letter string continue continue|hold
    Effect of a dead-lettered record on its key. continue delivers the next records of the key. hold
    blocks the key until the dead letter is redriven or skipped (shoal dlq redrive, shoal share
    skip).
share.ordering.key.dead.letter.max.held int 1000 1..100000
    Maximum number of records of a share partition that hold their keys. At this number the share
    partition delivers nothing until some are redriven or skipped.
share.ordering.key.lookahead int 100000 1000..1000000
    Maximum number of blocked records of a share partition that the broker tracks while it looks for
    deliverable records behind them.
share.delay.max.ms long 0 0..604800000
    Maximum delay that the record headers shoal.deliver.at and shoal.deliver.after can set. Longer
    delays are cut to it. 0 means that the headers are ignored.
share.delay.max.records int 100000 1..1000000
    Maximum number of delayed records of a share partition that the broker tracks. Later records
    wait behind them.
share.priority.header string "" -
    Record header with a priority from 0 to 9, as text. Higher priorities are delivered first.
    Records without the header get priority 0. If empty, there are no priorities.
share.priority.lookahead int 1000 1..10000
    Number of available records among which the broker selects the highest priority.
share.priority.ageing.ms int 60000 1..86400000
    Waiting time that raises a priority by one, so that every record is delivered eventually.
share.fairness.by string none @fairness-by
    What names the tenant of a record, so that no tenant starves another: none (all records are
    alike), key, or header: followed by the name of a record header. The next record is of the
    tenant with the least work in progress. Records without a name share a tenant.
share.fairness.weights list "" @tenant-weights
    Shares of named tenants, as tenant:weight. A tenant with weight 2 gets twice as many workers as
    one with weight 1, which is the weight of all others.
share.fairness.lookahead.records int 100000 1000..1000000
    Number of available records of a share partition that the broker tracks to find those of other
    tenants. Beyond them, fairness is limited. Each takes up to 200 bytes.
share.tenant.max.in.flight int 0 0..
    Maximum number of records of one tenant that members hold, in all partitions of a topic. 0 means
    no limit. Needs share.fairness.by. Each broker has the part that its partitions have, one record
    at least, and what other brokers lend it of theirs.
share.tenant.max.in.flight.overrides list "" @tenant-limits
    Maximum number of records in flight of named tenants, as tenant:number. 0 means no limit.
share.tenant.max.per.second double 0 0..
    Maximum number of deliveries to one tenant per second, in all partitions of a topic. 0 means no
    limit. Needs share.fairness.by. Each broker has the part that its partitions have, and what
    other brokers lend it of theirs.
share.tenant.max.per.second.overrides list "" @tenant-limits
    Maximum number of deliveries per second of named tenants, as tenant:number. 0 means no limit.
share.tenant.max.per.second.burst int 0 0..
    Number of deliveries to a tenant that may follow at once after a pause, if its rate is limited.
    0 means those of a second.
share.tenant.paused list "" -
    Tenants whose records are not delivered. Needs share.fairness.by.
errors.deadletterqueue.topic.name string "" -
    Topic for records that are rejected or reach the delivery limit (KIP-1191). If empty, there is
    none. A record leaves the group only when its dead letter is written.
errors.deadletterqueue.copy.record.enable boolean false -
    Whether dead letters contain the record's key, value, timestamp and headers in addition to the
    error headers.
shoal.errors.deadletterqueue.drop.after.ms long -1 -1..
    Time after which a record whose dead letter cannot be written is dropped. -1 means never.
shoal.errors.deadletterqueue.flood.per.minute int 0 0..
    Number of the group's dead letters per minute on one broker at which delivery to its members
    stops until the rate is lower. 0 means no limit.
# applied: Streams groups (KIP-1071)
streams.session.timeout.ms int 45000 1..
    < group.streams.session.timeout.ms
    [] group.streams.min.session.timeout.ms group.streams.max.session.timeout.ms
    Time without a heartbeat after which the group removes a member.
streams.heartbeat.interval.ms int 5000 1..
    < group.streams.heartbeat.interval.ms
    [] group.streams.min.heartbeat.interval.ms group.streams.max.heartbeat.interval.ms
    Interval of a member's heartbeats.
streams.assignment.interval.ms int 1000 0..
    < group.streams.assignment.interval.ms
    [] group.streams.min.assignment.interval.ms group.streams.max.assignment.interval.ms
    Minimum time between two assignments of the group.
streams.task.offset.interval.ms int 60000 1.. internal
    < group.streams.task.offset.interval.ms
    [] group.streams.min.task.offset.interval.ms -
    Interval at which a member reports the offsets of its tasks.
streams.initial.rebalance.delay.ms int 3000 0..
    < group.streams.initial.rebalance.delay.ms
    Time that a new group waits for more members.
streams.num.standby.replicas int 0 0..
    < group.streams.num.standby.replicas
    [] - group.streams.max.standby.replicas
    Standby replicas of a task.
# accepted: Assignors
consumer.assignor.offload.enable boolean true - internal
    < group.consumer.assignor.offload.enable
    Whether a thread of its own computes assignments. Shoal uses one event loop.
share.assignor.offload.enable boolean true - internal
    < group.share.assignor.offload.enable
    Whether a thread of its own computes assignments. Shoal uses one event loop.
streams.assignor.offload.enable boolean true - internal
    < group.streams.assignor.offload.enable
    Whether a thread of its own computes assignments. Shoal uses one event loop.
streams.assignor.name string - sticky
    Assignor of the group. Shoal has sticky.
streams.num.warmup.replicas int 2 0.. internal
    < group.streams.num.warmup.replicas
    [] - group.streams.max.warmup.replicas
    Maximum number of warm-up tasks. Shoal makes none.
streams.acceptable.recovery.lag long 10000 0.. internal
    < group.streams.acceptable.recovery.lag
    Lag of a copy of a state at which its task may move there. Tasks of Shoal move at once.
# refused: Racks
streams.rack.aware.assignment.tags list "" -
    < group.streams.rack.aware.assignment.tags
    Tags of clients over which standby tasks are spread.
"""
)
