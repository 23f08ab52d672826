"""Rules for share groups on the brokers of a simulated cluster, checked from within.

The checker only reads: periodically the windows of share partitions in memory, and all committed
records of `__share_group_state`.

* `share-start-offset`: goes back, in a leader's window or as committed; or moves past a record that
  no member has asked to settle and that has no dead letter.
* `share-dead-letters`: a record is archived, as committed, and has no dead letter; or it is
  acknowledged and has one.
* `share-terminal`: a committed complete delivery becomes incomplete.
* `share-lag`: the count of complete records differs from the number of records that are complete,
  in a window or as committed. `cluster_shares` checks the reported lag.
* `share-in-flight`: more records than `share.partition.max.record.locks` are in flight, or the
  locks hold other records than the window has.
* `share-stuck`: records are available, and a waiting fetch is not answered.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorRecord as StateRecord
from shoal.coordinator.share.records import ShareKey, ShareRecordType, decode, read_state_batches
from shoal.coordinator.share.state_store import NONE
from shoal.coordinator.share.states import ACQUIRED, ARCHIVED, AVAILABLE, is_terminal
from shoal.record.records import read_records
from shoal.server.share.leader import LeaderPhase, ShareLeader
from shoal.server.share.state_coordinator import TOPIC as STATES
from sim.cluster_kernel import Violation
from sim.cluster_shares import Hold, Letter, Record, ShareHistory, Where

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.record.batch import BatchHeader
    from shoal.server.broker import Broker
    from sim.cluster_brokers import BrokerMachine, SimCluster
    from sim.cluster_logs_checker import LogsChecker

#: Deliveries of one record that may be lost before any member sees them.
UNSEEN_MAX = 20
#: How long a fetch may wait while records are available.
STUCK_S = 0.5


class _Committed:
    """A share partition's state, as committed."""

    def __init__(self, state_epoch: int, start: int) -> None:
        self.state_epoch = state_epoch
        self.start = start
        #: States of complete offsets from the start offset on.
        self.terminal: dict[int, int] = {}
        #: Those of offsets that the start offset has passed since. Offsets that it passes in the
        #: same record are not among them.
        self.passed: dict[int, int] = {}


class _Window:
    """What was seen of one leader's window."""

    def __init__(self, leader: ShareLeader) -> None:
        self.leader = leader
        self.start = 0
        #: A fetch that waits although records are available, and since when.
        self.waiting: object = None
        self.since = 0.0


class SharesChecker:
    """Checks all brokers, and takes the records that `LogsChecker` finds committed."""

    def __init__(self, cluster: SimCluster, logs: LogsChecker) -> None:
        self.cluster = cluster
        self.logs = logs
        self.histories: dict[str, ShareHistory] = {}
        self.counts: Counter[str] = Counter()
        self._committed: dict[ShareKey, _Committed] = {}
        self._windows: dict[tuple[int, ShareKey], _Window] = {}
        #: By group: records that the start offset passed and no member had asked to settle.
        self._unsettled: dict[str, set[Record]] = {}
        logs.on_batch(self._batch)

    # For what members see.

    def look_at(self, group: str, record: Record, member: str) -> Hold | None:
        """Return what holds a member's lock on a record; None unless exactly one broker leads."""
        found = [
            (broker, leader)
            for _, broker in self.cluster.running()
            if (topic := broker.image.topics.get(record[0])) is not None
            and (leader := broker.share.find(group, topic.topic_id, record[1])) is not None
            and leader.phase is LeaderPhase.ACTIVE
        ]
        if len(found) != 1:
            return None
        ((broker, leader),) = found
        in_time = not any(machine.clock_offset_s for machine in self.cluster.brokers.values())
        return Hold(leader, broker.share.sessions.get(group, member), in_time)

    def ends(self, where: Where, *, newest: bool = False) -> tuple[int, bool]:
        """Return the committed end of a partition's log, or its `newest` end on any broker, and
        whether one broker leads it.

        A broker's response may arrive after its death. So the newest end includes what dead brokers
        had committed."""
        partitions = [
            partition
            for _, broker in self.cluster.running()
            if (partition := broker.partitions.find_by_name(*where)) is not None
        ]
        alone = sum(partition.is_leader for partition in partitions) == 1
        committed = self.logs.committed.get(where)
        end = 0 if committed is None else committed.end
        if newest:
            end = max([end, *(partition.log.log_end_offset for partition in partitions)])
            for machine in self.cluster.brokers.values():
                for broker in machine.past:
                    partition = broker.partitions.find_by_name(*where)
                    if partition is not None:
                        end = max(end, partition.high_watermark)
        return end, alone

    # In memory.

    def look(self) -> None:
        """Check all windows. Raises `Violation`."""
        for machine, broker in self.cluster.running():
            for of_group in broker.share.leaders.values():
                for leader in of_group.values():
                    if leader.phase is LeaderPhase.ACTIVE:
                        self._window(machine, broker, leader)

    def _window(self, machine: BrokerMachine, broker: Broker, leader: ShareLeader) -> None:
        window = self._windows.get((machine.id, leader.key))
        if window is None or window.leader is not leader:
            window = self._windows[(machine.id, leader.key)] = _Window(leader)
        share, name = leader.share, f"{machine.name} {leader.key}"
        if share.start_offset < window.start:
            raise Violation("share-start-offset", f"{name}: {window.start} to {share.start_offset}")
        self._passed(leader.key, leader.partition.topic, window.start, share.start_offset)
        window.start = share.start_offset
        complete, acquired, gaps = _counted(share, name)
        if complete != share.complete:
            raise Violation("share-lag", f"{name}: {complete} are complete, not {share.complete}")
        self._in_flight(leader, acquired, gaps, name)
        self._stuck(machine, broker, leader, window)
        self.counts["windows"] += 1

    def _in_flight(self, leader: ShareLeader, acquired: int, gaps: int, name: str) -> None:
        share = leader.share
        held = sum(lock.records for lock in share.locks.live.values())
        if held != acquired:
            raise Violation("share-in-flight", f"{name}: locks hold {held}, {acquired} acquired")
        most = leader.settings.max_record_locks
        in_flight = share.end_offset - share.start_offset - gaps
        if leader.settings.selection is not None:
            in_flight = held
        if in_flight > most:
            raise Violation("share-in-flight", f"{name}: {in_flight}, and at most {most}")

    def _stuck(
        self, machine: BrokerMachine, broker: Broker, leader: ShareLeader, window: _Window
    ) -> None:
        kernel, process = self.cluster.kernel, machine.process
        waiting = None
        if (
            process is not None
            and process.deferred is None
            and not broker.replicas.is_cut_off(leader.partition)
            and _has_something(leader)
        ):
            parked = broker.purgatory._by_key.get(leader.wake_key) or {}
            waiting = next((one for one in parked if not one.future.done()), None)
        if waiting is None or waiting is not window.waiting:
            window.waiting, window.since = waiting, kernel.now
        elif kernel.now - window.since > STUCK_S:
            raise Violation(
                "share-stuck",
                f"{machine.name} {leader.key} has records since {window.since}, a fetch waits",
            )

    def _passed(self, key: ShareKey, topic: str, before: int, start: int) -> None:
        """Check a start offset that has moved. Records of a group with a low limit may reach it
        unseen, and `finish_letters` looks for the dead letters of those that no member settled."""
        history = self.histories.get(key.group_id)
        if history is None:
            return
        for offset in range(before, start):
            record = (topic, key.partition, offset)
            if history.limit < UNSEEN_MAX:
                if not history.was_asked_for(record):
                    self._unsettled.setdefault(key.group_id, set()).add(record)
            elif not history.may_be_complete(record):
                raise Violation(
                    "share-start-offset",
                    f"{key} is at {start}, past {record}, which no member settled",
                )

    # As committed.

    def _batch(self, where: Where, header: BatchHeader, data: bytes) -> None:
        """Take a committed batch."""
        if where[0] != STATES or header.is_control:
            return
        for record in read_records(data):
            decoded = decode(StateRecord(bytes(record.key or b""), record.value))
            if decoded is None:
                continue
            if decoded.value is None:
                self._committed.pop(decoded.key, None)
            elif decoded.type is ShareRecordType.SHARE_SNAPSHOT:
                self._snapshot(decoded.key, decoded.value)
            elif decoded.key in self._committed:
                state = self._committed[decoded.key]
                self._apply(decoded.key, state, decoded.value, dict(state.terminal))

    def _snapshot(self, key: ShareKey, value: dict[str, Any]) -> None:
        known = self._committed.get(key)
        if known is None or known.state_epoch != value["state_epoch"]:
            known = self._committed[key] = _Committed(value["state_epoch"], value["start_offset"])
        start = max(known.start, value["start_offset"])
        covered = {
            o for first, last, *_ in read_state_batches(value) for o in range(first, last + 1)
        }
        for offset in sorted(known.terminal):
            if offset >= start and offset not in covered:
                raise Violation("share-terminal", f"{key}: a snapshot is without {offset}")
        self._apply(key, known, value, {})

    def _apply(
        self, key: ShareKey, state: _Committed, value: dict[str, Any], terminal: dict[int, int]
    ) -> None:
        """Apply a record to the known state; `terminal` starts with offsets that it does not
        cover."""
        start, topic = value["start_offset"], self._topic(key.topic_id)
        if start == NONE:
            start = state.start
        elif start < state.start:
            raise Violation("share-start-offset", f"{key}: {state.start} to {start}, as committed")
        elif topic is not None and state.start >= 0:
            self._passed(key, topic, state.start, start)
        for first, last, now, _ in read_state_batches(value):
            for offset in range(max(first, start), last + 1):
                before = state.terminal.get(offset, now)
                if before != now:
                    raise Violation("share-terminal", f"{key} {offset}: {before} to {now}")
                if is_terminal(now):
                    terminal[offset] = now
        state.start = start
        state.passed |= {offset: of for offset, of in state.terminal.items() if offset < start}
        state.terminal = {offset: of for offset, of in terminal.items() if offset >= start}
        complete = value.get("delivery_complete_count", NONE)
        if complete not in (NONE, len(state.terminal)):
            raise Violation(
                "share-lag", f"{key}: {complete} complete as committed, not {len(state.terminal)}"
            )
        self.counts["states"] += 1

    # At the end.

    def finish_letters(self, group: str, letters: Iterable[Letter]) -> None:
        """Compare the dead letters of a group with its committed states and its start offset."""
        found = {letter.record for letter in letters}
        for record in sorted(self._unsettled.get(group, set()) - found):
            raise Violation(
                "share-start-offset",
                f"{group} is past {record}, which no member settled and which has no dead letter",
            )
        for key, state in self._committed.items():
            topic = self._topic(key.topic_id)
            if key.group_id != group or topic is None:
                continue
            for offset, of in sorted((state.passed | state.terminal).items()):
                record = (topic, key.partition, offset)
                if (of == ARCHIVED) != (record in found):
                    raise Violation("share-dead-letters", f"{group} has {record} in state {of}")
                self.counts["archived" if of == ARCHIVED else "acknowledged"] += 1

    def _topic(self, topic_id: UUID) -> str | None:
        for _, broker in self.cluster.running():
            topic = broker.image.topics_by_id.get(topic_id)
            if topic is not None:
                return topic.name
        return None


def _counted(share: SharePartition, name: str) -> tuple[int, int, int]:
    """Return the numbers of complete offsets, of acquired offsets, and of complete offsets that
    were never acquired in a window."""
    runs = share.runs
    complete = acquired = gaps = 0
    for row, state in enumerate(runs.states):
        size = runs.get_last(row) - runs.firsts[row] + 1
        if is_terminal(state):
            complete += size
            gaps += size if runs.counts[row] == 0 else 0
        elif state == ACQUIRED:
            acquired += size
            if runs.locks[row] not in share.locks.live:
                raise Violation("share-in-flight", f"{name}: no lock on {runs.firsts[row]}")
    return complete, acquired, gaps


def _has_something(leader: ShareLeader) -> bool:
    """Return whether a fetch would get records."""
    settings, share, selection = leader.settings, leader.share, leader.selection
    if leader.is_delivery_stopped(settings):
        return False
    if settings.selection is not None:
        return selection is not None and selection.may_choose() and not leader.is_full(settings)
    if AVAILABLE in share.runs.states:
        return True
    new = share.end_offset < leader.get_limit(settings)
    return new and share.in_flight < settings.max_record_locks
