"""Group configs (KIP-848, KIP-932, KIP-1240; under "Queues" our own): their broker defaults (<) and
bounds ([])."""

from __future__ import annotations

from shoal.metadata.config_keys import table

GROUP = table(
    """
# applied: Consumer groups
consumer.session.timeout.ms int 45000 1..
    < group.consumer.session.timeout.ms
    [] group.consumer.min.session.timeout.ms group.consumer.max.session.timeout.ms
    Milliseconds without heartbeat after which a member is out.
consumer.heartbeat.interval.ms int 5000 1..
    < group.consumer.heartbeat.interval.ms
    [] group.consumer.min.heartbeat.interval.ms group.consumer.max.heartbeat.interval.ms
    Milliseconds between the heartbeats of a member.
consumer.assignment.interval.ms int 1000 0..
    < group.consumer.assignment.interval.ms
    [] group.consumer.min.assignment.interval.ms group.consumer.max.assignment.interval.ms
    Milliseconds, at least, between two assignments of the group.
# applied: Share groups
share.auto.offset.reset string latest @offset-reset
    Where a share partition starts at first: latest, earliest, or by_duration: and an ISO 8601
    duration back from now.
share.isolation.level string read_uncommitted read_committed|read_uncommitted
    Whether records of open and aborted transactions are delivered.
share.renew.acknowledge.enable boolean true -
    Whether members may renew the lock of a record (KIP-1222).
share.session.timeout.ms int 45000 1..
    < group.share.session.timeout.ms
    [] group.share.min.session.timeout.ms group.share.max.session.timeout.ms
    Milliseconds without heartbeat after which a member is out.
share.heartbeat.interval.ms int 5000 1..
    < group.share.heartbeat.interval.ms
    [] group.share.min.heartbeat.interval.ms group.share.max.heartbeat.interval.ms
    Milliseconds between the heartbeats of a member.
share.record.lock.duration.ms int 30000 1000..
    < group.share.record.lock.duration.ms
    [] group.share.min.record.lock.duration.ms group.share.max.record.lock.duration.ms
    Milliseconds that a record stays acquired before it is available again.
share.delivery.count.limit int 5 2..
    < group.share.delivery.count.limit
    [] group.share.min.delivery.count.limit group.share.max.delivery.count.limit
    Deliveries of a record before it is archived.
share.partition.max.record.locks int 2000 100..
    < group.share.partition.max.record.locks
    [] group.share.min.partition.max.record.locks group.share.max.partition.max.record.locks
    Records of one share partition that may be in flight.
share.assignment.interval.ms int 1000 0..
    < group.share.assignment.interval.ms
    [] group.share.min.assignment.interval.ms group.share.max.assignment.interval.ms
    Milliseconds, at least, between two assignments of the group.
# applied: Queues: what share groups have beyond Kafka's
share.redelivery.backoff.ms int 0 0..86400000
    Milliseconds that a record waits after its first delivery failed (released, or its lock ended)
    before it is available again; 0 to make it available at once.
share.redelivery.backoff.max.ms int 300000 1..86400000
    Milliseconds that such a wait lasts at most.
share.redelivery.backoff.multiplier double 2.0 1..100
    How many times longer the wait is after each further delivery.
share.redelivery.backoff.jitter double 0.2 0..1
    By what part of itself a wait is made shorter or longer at random.
share.delivery.paused boolean false -
    Whether delivery to the group's members stops. Locks run on, and acknowledgements are taken.
share.ordering string none none|key
    Whether records of one key are delivered in the order of the log, to one member at a time.
share.ordering.key.batch int 1 1..10000
    Records of one key that one fetch may get.
share.ordering.key.dead.letter string continue continue|hold
    What a dead-lettered record does to its key: the key goes on, or it is held until the letter is
    redriven or skipped (shoal share redrive, shoal share skip).
share.ordering.key.dead.letter.max.held int 1000 1..100000
    Records of one share partition that may hold their keys so; with as many, nothing more is
    delivered from it until some are redriven or skipped.
share.ordering.key.lookahead int 100000 1000..1000000
    Records of one share partition that may be known and held back, to find others behind them.
share.delay.max.ms long 0 0..604800000
    Milliseconds that the record headers shoal.deliver.at and shoal.deliver.after may hold a record
    back; a longer delay is cut to it. 0 to deliver whatever these headers say.
share.delay.max.records int 100000 1..1000000
    Records of one share partition that may be held back at a time; what follows waits behind them.
share.priority.header string "" -
    Record header that holds a priority from 0 to 9, as text: higher ones are delivered first, and
    0 counts where there is none. No priority if empty.
share.priority.lookahead int 1000 1..10000
    Available records among which the one of highest priority goes first.
share.priority.ageing.ms int 60000 1..86400000
    Milliseconds of waiting that are worth one step of priority, so that nothing waits for ever.
errors.deadletterqueue.topic.name string "" -
    Topic that records go to which are rejected or reach the delivery limit (KIP-1191); none if
    empty. A record leaves the group only when its dead letter is written.
errors.deadletterqueue.copy.record.enable boolean false -
    Whether dead letters have the record's key, value, timestamp and headers beside the error
    headers, and not only these.
shoal.errors.deadletterqueue.drop.after.ms long -1 -1..
    Milliseconds after which a record whose dead letter cannot be written is dropped; -1 for never.
shoal.errors.deadletterqueue.flood.per.minute int 0 0..
    Dead letters of the group in a minute, on one broker, at which delivery to its members is held
    until there were fewer; 0 for no limit.
# accepted: Streams groups: their protocol is not served
streams.session.timeout.ms int 45000 1..
    < group.streams.session.timeout.ms
    [] group.streams.min.session.timeout.ms group.streams.max.session.timeout.ms
    Milliseconds without heartbeat after which a member is out.
streams.heartbeat.interval.ms int 5000 1..
    < group.streams.heartbeat.interval.ms
    [] group.streams.min.heartbeat.interval.ms group.streams.max.heartbeat.interval.ms
    Milliseconds between the heartbeats of a member.
streams.assignment.interval.ms int 1000 0..
    < group.streams.assignment.interval.ms
    [] group.streams.min.assignment.interval.ms group.streams.max.assignment.interval.ms
    Milliseconds, at least, between two assignments of the group.
streams.initial.rebalance.delay.ms int 3000 0..
    < group.streams.initial.rebalance.delay.ms
    Milliseconds that a new group waits for more members.
streams.num.standby.replicas int 0 0..
    < group.streams.num.standby.replicas
    [] - group.streams.max.standby.replicas
    Standby replicas of a task.
"""
)
