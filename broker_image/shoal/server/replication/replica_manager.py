"""The replicas on this broker: which of them follow, and which followers a leader waits for.

`ReplicaFetcherManager` fetches the partitions that follow; `IsrChanges` asks the controller for
other ISRs. The rules of replication are in `shoal.replication`. This module adds the clock.

A follower's fetch waits at its leader for records. If it was sent before a partition was assigned
to the follower, it does not name that partition, and would delay its first fetch. So a new leader
of a partition answers the waiting fetches of its followers at once. Until a follower has fetched
the partition in the leader's epoch, its fetches wait for `AWAITED_FETCH_WAIT_MS` at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shoal.replication.leadership import UNKNOWN_OFFSET

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from shoal.replication.partition import Partition
    from shoal.replication.replica_fetcher import Key
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.replication.isr_changes import IsrChanges
    from shoal.server.replication.partitions import Partitions
    from shoal.server.replication.replica_fetchers import ReplicaFetcherManager

#: Longest wait of a fetch whose follower has not fetched all its partitions, and the time after
#: which the leader gives up on the follower.
AWAITED_FETCH_WAIT_MS = 20
AWAITED_FETCH_MS = 5_000
#: Interval of the notes that this broker runs, in seconds.
RUNNING_S = 0.2


class BrokerSession(Protocol):
    """This broker's session with the controller (`cluster.lifecycle`)."""

    @property
    def is_lost(self) -> bool:
        """Whether no controller has answered for broker.session.timeout.ms."""

    @property
    def is_put_out(self) -> bool:
        """Whether a controller has answered that this broker is fenced."""


class ReplicaManager:
    """Owns the times of followers' fetches, and the fetches that leaders wait for."""

    def __init__(
        self,
        node: Node,
        partitions: Partitions,
        isr_changes: IsrChanges,
        *,
        fetchers: ReplicaFetcherManager,
        purgatory: Purgatory,
        session: BrokerSession,
    ) -> None:
        self._node = node
        self._partitions = partitions
        self._isr_changes = isr_changes
        self.fetchers = fetchers
        self._purgatory = purgatory
        self._session = session
        #: By broker: partitions led here that it has not fetched in their epoch, with the time
        #: until which the leader waits for that.
        self._awaited_fetches: dict[int, dict[Key, int]] = {}
        #: By broker: the time of its last fetch, in seconds of the loop's clock.
        self._last_fetch_s: dict[int, float] = {}
        self._running: TimerHandle | None = None
        #: The time of the last note that this broker runs, and of the one before.
        self._ran_s = self._ran_before_s = node.loop.time()
        #: Partitions that were found cut off since the last heartbeat.
        self._found_cut_off: set[Key] = set()
        partitions.on_registered(self._on_registered)
        partitions.on_removed(self._on_removed)

    def start(self) -> None:
        """Follow the metadata, which has been read, and look for followers that lag."""
        self._running = self._node.loop.call_later(0, self._run)
        self.fetchers.start()
        config = self._node.config
        self._node.timers.call_every(
            lambda: max(100, config["replica.lag.time.max.ms"] // 2), self._tick
        )

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self.fetchers.stop()
        self._isr_changes.stop()

    # Roles

    def _on_registered(self, partition: Partition) -> None:
        """Follow the partition's leader, or wait for the followers of a partition led here."""
        self.fetchers.follow_leader(partition)
        if partition.is_leader and partition.leadership is not None:
            self._await_followers(partition)

    def _on_removed(self, partition: Partition) -> None:
        self.fetchers.forget(partition)
        self._isr_changes.discard(partition)

    # Followers that no longer fetch

    def on_follower_fetch(self, replica_id: int) -> None:
        """Note a fetch of that broker.

        While this broker was frozen, fetches waited in its sockets, and the followers may have gone
        to another leader since. So a fetch counts from a time when this broker certainly ran.
        """
        self._last_fetch_s[replica_id] = self._ran_before_s

    def _run(self) -> None:
        """Note that this broker runs. The note before is older than a freeze that ends now. Timers
        of the node follow the wall clock, which can be set."""
        loop = self._node.loop
        self._ran_before_s, self._ran_s = self._ran_s, loop.time()
        self._running = loop.call_later(RUNNING_S, self._run)

    def is_cut_off(self, partition: Partition) -> bool:
        """Whether a partition that this broker leads cannot commit now.

        This is the case if the controller and an in-sync follower have been silent for
        broker.session.timeout.ms. Then no broker can remove the follower from the ISR, and another
        broker may be the leader by now. It is also the case if a controller has fenced this broker.
        """
        if partition.leadership is None or not self._session.is_lost:
            return False
        if self._session.is_put_out or self._is_follower_missing(partition):
            self._found_cut_off.add(partition.key)
            return True
        return False

    def _is_follower_missing(self, partition: Partition) -> bool:
        """Whether an in-sync follower has been silent for broker.session.timeout.ms."""
        node = self._node
        cutoff = node.loop.time() - node.config["broker.session.timeout.ms"] / 1000
        return any(
            replica != node.id and self._last_fetch_s.get(replica, 0.0) < cutoff
            for replica in partition.isr
        )

    @property
    def some_cut_off(self) -> bool:
        """Whether any partition is cut off. Other brokers may then know newer leaders and
        coordinators."""
        return self._session.is_lost and any(map(self.is_cut_off, self._partitions))

    def retry_cut_off(self) -> None:
        """Retry the requests that wait for partitions that are cut off, or were found so since the
        last call: a write is refused now, and a fetch may get records again."""
        keys, self._found_cut_off = self._found_cut_off, set()
        if self._session.is_lost:
            keys |= {p.key for p in self._partitions if self.is_cut_off(p)}
        for key in keys:
            self._purgatory.wake(key)

    def _await_followers(self, partition: Partition) -> None:
        assert partition.leadership is not None
        until_ms = self._node.clock.now_ms() + AWAITED_FETCH_MS
        for replica, follower in partition.leadership.followers.items():
            if follower.log_end_offset == UNKNOWN_OFFSET:
                self._awaited_fetches.setdefault(replica, {})[partition.key] = until_ms
                self._purgatory.wake(("replica", replica))

    def is_fetch_awaited(self, replica_id: int, now_ms: int) -> bool:
        """Whether that broker has yet to fetch a partition in its leader epoch."""
        awaited = self._awaited_fetches.get(replica_id)
        if not awaited:
            return False
        for key, until_ms in list(awaited.items()):
            partition = self._partitions.get(*key)
            leadership = None if partition is None else partition.leadership
            follower = None if leadership is None else leadership.followers.get(replica_id)
            pending = follower is not None and follower.log_end_offset == UNKNOWN_OFFSET
            if until_ms <= now_ms or not pending:
                del awaited[key]
        return bool(awaited)

    def _tick(self) -> None:
        now_ms = self._node.clock.now_ms()
        for partition in self._partitions:
            if partition.leadership is not None:
                partition.tick(now_ms)
