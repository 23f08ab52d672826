"""Queues as the pages show them: numbers, a state in one or two words, and causes with remedies.

A queue is one share group on one topic. All functions are pure.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.queues import skipped_records
from shoal.console import figures
from shoal.console.sampling.history import Point
from shoal.console.sampling.sample import MetricsSource
from shoal.monitoring import delays, stop_reasons
from shoal.monitoring.scrape import ShareNumbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.queues.lag import Position
    from shoal.console.sampling.history import QueueHistory, Series
    from shoal.console.sampling.holdings import Holdings
    from shoal.console.sampling.sample import ClusterSample

_NAN = float("nan")
#: Without any completed record for this period, a queue with consumers makes no progress.
NO_PROGRESS_S = 60.0
#: Only a consumer that renews a lock keeps it for this long: it works slowly, or it hangs. Without
#: a renewal a lock ends after a minute at most (group.share.max.record.lock.duration.ms).
LOCK_AGE_S_MAX = 300.0
#: Consumers that a sentence names.
HOLDERS_MAX = 3
#: The limits that were reached, by the reason for which delivery has stopped.
_LIMITS = {
    "flood": ("shoal.errors.deadletterqueue.flood.per.minute",),
    "held-keys": ("share.ordering.key.dead.letter.max.held",),
    "window-full": ("share.partition.max.record.locks",),
    "look-ahead": (
        "share.ordering.key.lookahead",
        "share.delay.max.records",
        "share.fairness.lookahead.records",
    ),
}


class Level(IntEnum):
    """How urgent a state is."""

    IDLE = 0
    GOOD = 1
    WARNING = 2
    BAD = 3


class QueueState(NamedTuple):
    level: Level
    words: str


class Remedy(NamedTuple):
    """A button: an action of the console, and the fields of its form."""

    label: str
    action: str
    fields: dict[str, str]


class QueueCause(NamedTuple):
    """Why records are not delivered, and the actions that mend it."""

    text: str
    remedies: tuple[Remedy, ...] = ()


class QueuePart(NamedTuple):
    """One segment of a queue's bar: records in one state."""

    name: str
    label: str
    records: int
    meaning: str


_STOPS = {
    "flood": QueueState(Level.BAD, "Stopped: flood"),
    "held-keys": QueueState(Level.BAD, "Stopped: keys held"),
    "paused": QueueState(Level.WARNING, "Paused"),
    "window-full": QueueState(Level.WARNING, "Window full"),
    "look-ahead": QueueState(Level.WARNING, "Look-ahead full"),
}
_KEYS_HELD = QueueState(Level.WARNING, "Keys held")
_LETTERS_FAIL = QueueState(Level.BAD, "Letters fail")
#: A partition has no leader, or the group's first member has just joined.
_UNKNOWN = QueueState(Level.IDLE, "Unknown")
_IDLE, _MOVING = QueueState(Level.IDLE, "Empty"), QueueState(Level.GOOD, "Moving")
#: Words in place of the state while a queue has too short a history.
_WAITING = QueueState(Level.GOOD, "Waiting")
#: No record can be delivered before its time.
_DELAYED = QueueState(Level.GOOD, "Delayed")


@dataclass(frozen=True, slots=True)
class MonitoredQueue:
    """One share group on one topic.

    Counts are records and None if unknown. `depth` is the lag: all records that are not settled.
    It is a lower bound if `is_partial`: the lag of some partitions is unknown.
    `letters` counts the group's dead-letter topic. `numbers` is None without metrics.
    """

    group: str
    topic: str
    members: int
    depth: int | None
    is_partial: bool
    oldest_ms: int | None
    numbers: ShareNumbers | None
    letters: int | None
    rate_in: float | None
    rate_out: float | None
    states: tuple[QueueState, ...]

    @property
    def state(self) -> QueueState:
        """The most urgent state."""
        return max(self.states, key=lambda state: state.level)

    @property
    def held(self) -> int | None:
        """Records that wait for their key or for a dead letter."""
        numbers = self.numbers
        return (
            None if numbers is None else numbers.held_by_key + numbers.archiving + numbers.keys_held
        )

    @property
    def parts(self) -> list[QueuePart]:
        """The records of `depth` by state; empty without metrics."""
        return divide_parts(self.depth, self.numbers)


def divide_parts(depth: int | None, numbers: ShareNumbers | None) -> list[QueuePart]:
    """Divide a number of records by state. Metrics and lag are read one after the other, so the
    available records are what the others leave, and at least 0."""
    if numbers is None or depth is None:
        return []
    other_parts = [
        QueuePart("in-flight", "In flight", numbers.in_flight, "locked by a consumer"),
        QueuePart("delayed", "Delayed", numbers.delayed, "not due yet"),
        QueuePart(
            "backing-off", "Backing off", numbers.backing_off, "released; waits for its retry"
        ),
        QueuePart(
            "held", "Held by key", numbers.held_by_key, "waits for an earlier record of its key"
        ),
        QueuePart("holds", "Holds its key", numbers.keys_held, "dead-lettered, and blocks its key"),
        QueuePart("archiving", "Letter pending", numbers.archiving, "waits for its dead letter"),
    ]
    if numbers.behind_limits:
        meaning = "waits behind its tenant's limit"
        other_parts.append(QueuePart("limited", "Behind limits", numbers.behind_limits, meaning))
    available = max(0, depth - sum(part.records for part in other_parts))
    return [QueuePart("available", "Available", available, "can be acquired now"), *other_parts]


def make_queues(sample: ClusterSample, history: QueueHistory) -> list[MonitoredQueue]:
    """Return all queues, the most troubled first, then the deepest."""
    by_topic = _sum_by_topic(sample)
    made = []
    for group in sample.groups:
        topics: dict[str, list[Position]] = {}
        for position in sample.positions.get(group, ()):
            topics.setdefault(position.partition.topic, []).append(position)
        for topic, positions in topics.items():
            series = history.get_series(group, topic)
            made.append(_make_queue(sample, group, topic, positions, by_topic, series))
    return sorted(made, key=_get_urgency)


def _get_urgency(queue: MonitoredQueue) -> tuple[int, int, str, str]:
    return -queue.state.level, -(queue.depth or 0), queue.group, queue.topic


def _make_queue(
    sample: ClusterSample,
    group: str,
    topic: str,
    positions: list[Position],
    by_topic: Mapping[tuple[str, str], ShareNumbers],
    series: Series,
) -> MonitoredQueue:
    depth = _sum_known(p.lag for p in positions)
    numbers = None
    partitions = sample.numbers.partitions if sample.numbers else {}
    if sample.metrics is MetricsSource.REPORTED and delays.is_known(group, positions, partitions):
        numbers = by_topic.get((group, topic), ShareNumbers())
    ages = [
        sample.oldest_ms[p.partition, p.offset]
        for p in positions
        if p.lag and p.offset is not None and (p.partition, p.offset) in sample.oldest_ms
    ]
    letters_of = sample.letter_topics.get(group)
    queue = MonitoredQueue(
        group,
        topic,
        len(sample.groups[group].members),
        depth,
        depth is not None and any(p.lag is None for p in positions),
        min(ages, default=None),
        numbers,
        sample.letters.get(letters_of) if letters_of else None,
        series.compute_rate("produced"),
        series.compute_rate("done"),
        (),
    )
    return _with_states(queue, _find_stops(sample, group), series)


def _with_states(queue: MonitoredQueue, stops: Iterable[str], series: Series) -> MonitoredQueue:
    states = [_STOPS.get(why, _LETTERS_FAIL) for why in stops]
    if queue.numbers is not None and queue.numbers.keys_held and queue.numbers.held_by_key:
        states.append(_KEYS_HELD)
    if queue.depth is None:
        states.append(_UNKNOWN)
    elif not queue.depth:
        states.append(_IDLE)
    elif not queue.members:
        states.append(QueueState(Level.WARNING, "No consumers"))
    else:
        if queue.numbers is not None and queue.numbers.oldest_lock_age_s > LOCK_AGE_S_MAX:
            states.append(QueueState(Level.WARNING, "Old lock"))
        if queue.numbers is not None and delays.is_only_delayed(queue.depth, queue.numbers):
            states.append(_DELAYED)
        elif series.measure_unchanged_s("done") >= NO_PROGRESS_S and _may_progress(queue):
            states.append(QueueState(Level.WARNING, "No progress"))
        elif queue.rate_out:
            states.append(_MOVING)
        else:
            states.append(_WAITING)
    fields = {name: getattr(queue, name) for name in MonitoredQueue.__slots__}
    return MonitoredQueue(**{**fields, "states": tuple(states)})


def _may_progress(queue: MonitoredQueue) -> bool:
    """Whether records could be delivered now; a queue of delayed records only waits."""
    if queue.numbers is None:
        return True
    return any(part.records for part in queue.parts if part.name in ("available", "in-flight"))


def _find_stops(sample: ClusterSample, group: str) -> list[str]:
    numbers = sample.numbers.groups.get(group) if sample.numbers else None
    reasons = set(numbers.stop_reasons if numbers else ())
    return sorted(reasons | {"paused"} if group in sample.paused else reasons)


def find_causes(
    sample: ClusterSample,
    group: str,
    group_queues: Iterable[MonitoredQueue],
    holdings: Holdings | None = None,
) -> list[QueueCause]:
    """Return why records of a group are not delivered, each with its remedy.

    Commands are in backquotes. Empty if nothing is wrong.
    """
    all_queues = list(group_queues)
    # Readers paste the commands into a shell, and a group may have any name.
    quoted = shlex.quote(group)
    causes = [
        QueueCause(stop_reasons.format_sentence(why, quoted), _find_remedies(sample, group, why))
        for why in _find_stops(sample, group)
    ]
    depth = sum(queue.depth or 0 for queue in all_queues)
    wait = "waits" if depth == 1 else "wait"
    if depth and not sample.groups[group].members:
        causes.append(
            QueueCause(
                f"The group has no consumers, and {figures.format_plural(depth, 'record')} {wait}. "
                "Start"
                f" one. `shoal consume {all_queues[0].topic} --from-beginning` shows the records "
                "of the topic and leaves them in the queue."
            )
        )
    for queue in all_queues:
        causes += _find_queue_causes(sample, queue, holdings)
    return causes


def _find_queue_causes(
    sample: ClusterSample, queue: MonitoredQueue, holdings: Holdings | None
) -> list[QueueCause]:
    group, words = queue.group, {state.words for state in queue.states}
    causes = []
    if queue.numbers is not None and delays.is_only_delayed(queue.depth, queue.numbers):
        causes.append(QueueCause(f"{queue.topic}: {delays.describe(queue.numbers, sample.at_ms)}"))
    parts = {part.name: part.records for part in queue.parts}
    if parts.get("limited") and not parts["available"]:
        limited = figures.format_plural(parts["limited"], "record")
        text = (
            f"{limited} of {queue.topic} {'waits' if parts['limited'] == 1 else 'wait'} behind"
            " limits of their tenants, and no other record waits. `shoal share inspect"
            f" {shlex.quote(group)} {queue.topic} --by tenant` counts them."
        )
        causes.append(QueueCause(text))
    if _KEYS_HELD.words in words and queue.numbers is not None:
        quoted, waiting = shlex.quote(group), queue.numbers.held_by_key
        dead_letters = shlex.quote(sample.letter_topics.get(group, "TOPIC"))
        text = (
            f"{figures.format_plural(waiting, 'record')} of {queue.topic}"
            f" {'waits' if waiting == 1 else 'wait'}"
            f" behind dead letters of the same keys (share.ordering.key.dead.letter=hold)."
            f" `shoal dlq redrive {dead_letters} --group {quoted}` sends the dead letters back;"
            f" `shoal dlq skip {quoted} --key KEY` releases one key."
        )
        causes.append(QueueCause(text, _make_held_remedies(sample, group, topic=queue.topic)))
    if "Old lock" in words and queue.numbers is not None:
        age = figures.format_duration(queue.numbers.oldest_lock_age_s)
        text = (
            f"A consumer has locked a record of {queue.topic} for {age}, and renews the lock."
            " If the consumer hangs, end its process. The record is then delivered to another"
            " consumer."
        )
        causes.append(QueueCause(text + _describe_holders(sample, queue, holdings)))
    if "No progress" in words:
        text = (
            f"No record of {queue.topic} was completed in the last minute, although consumers"
            " are connected and records can be delivered. See the consumers' logs."
        )
        causes.append(QueueCause(text + _describe_holders(sample, queue, holdings)))
    return causes


def describe_skipped(sample: ClusterSample, group: str) -> list[str]:
    """Return sentences on records before the start of a group that has acquired nothing since its
    brokers loaded it. Commands are in backquotes.

    A group with a lag has something else to do first, and a console of many queues has no place for
    a hint on each.
    """
    numbers = sample.numbers.partitions if sample.numbers else {}
    positions = sample.positions.get(group, ())
    has_acquired = any(
        partition_numbers.acquired
        for p in positions
        if (partition_numbers := numbers.get((group, p.partition)))
    )
    if has_acquired or any(p.lag for p in positions):
        return []
    skipped = skipped_records.count_before(sample.log_starts, positions)
    return [skipped_records.say_perhaps_left_behind(group, *entry) for entry in skipped.items()]


def _describe_holders(
    sample: ClusterSample, queue: MonitoredQueue, holdings: Holdings | None
) -> str:
    """Return a sentence on the consumers that hold records of a queue, the most first."""
    members = {member.member_id: member for member in sample.groups[queue.group].members}
    holders = [
        (holding.records, id)
        for id, holding in (holdings.members if holdings else {}).items()
        if any(partition.topic == queue.topic for partition in holding.get_partitions())
    ]
    if not holders:
        return ""
    words = []
    for records, id in sorted(holders, reverse=True)[:HOLDERS_MAX]:
        member = members.get(id)
        place = f" at {member.client_host.lstrip('/')}" if member else ", which has left"
        words.append(f"{id}{place} ({figures.format_plural(records, 'record')})")
    more = f" and {len(holders) - HOLDERS_MAX} more" if len(holders) > HOLDERS_MAX else ""
    return f" These consumers hold records: {', '.join(words)}{more}."


def _find_remedies(sample: ClusterSample, group: str, why: str) -> tuple[Remedy, ...]:
    """Return the actions against a reason for which delivery, or letters, have stopped."""
    if why == "paused":
        return (Remedy("Resume delivery", "resume", {"group": group}),)
    if why.startswith("topic-"):
        return (Remedy("Repair the dead-letter topic", "letter-topic", {"group": group}),)
    limits = tuple(
        Remedy(f"Raise {name}", "limit", {"group": group, "config": name})
        for name in _LIMITS.get(why, ())
    )
    return (_make_held_remedies(sample, group) if why == "held-keys" else ()) + limits


def _make_held_remedies(sample: ClusterSample, group: str, topic: str = "") -> tuple[Remedy, ...]:
    """Return the actions that release keys which dead letters hold."""
    skip = {"group": group, **({"topic": topic} if topic else {})}
    dead_letters = sample.letter_topics.get(group)
    source = {"source": topic} if topic else {}
    redrive = {"topic": dead_letters or "", "group": group, **source}
    return (
        *((Remedy("Send the letters back", "redrive", redrive),) if dead_letters else ()),
        Remedy("Skip the letters", "skip", skip),
    )


def make_points(sample: ClusterSample) -> dict[tuple[str, str], Point]:
    """Return the sample's point for the history of each queue."""
    by_topic = _sum_by_topic(sample)
    queue_points = {}
    for group in sample.groups:
        topics: dict[str, list[Position]] = {}
        for position in sample.positions.get(group, ()):
            topics.setdefault(position.partition.topic, []).append(position)
        letters_of = sample.letter_topics.get(group)
        dead_letters = sample.letters.get(letters_of, _NAN) if letters_of else _NAN
        for topic, positions in topics.items():
            measured = [p for p in positions if p.lag is not None and p.log_end_offset is not None]
            is_complete = len(measured) == len(positions)
            produced = sum(p.log_end_offset or 0 for p in measured) if is_complete else _NAN
            depth = sum(p.lag or 0 for p in measured) if measured else _NAN
            numbers = by_topic.get((group, topic), ShareNumbers())
            in_flight = numbers.in_flight if sample.metrics is MetricsSource.REPORTED else _NAN
            queue_points[group, topic] = Point(
                sample.at_s, depth, in_flight, produced, produced - depth, dead_letters
            )
    return queue_points


def _sum_by_topic(sample: ClusterSample) -> dict[tuple[str, str], ShareNumbers]:
    by_topic: dict[tuple[str, str], ShareNumbers] = {}
    if sample.numbers is None:
        return by_topic
    for (group, partition), numbers in sample.numbers.partitions.items():
        by_topic.setdefault((group, partition.topic), ShareNumbers()).add(numbers)
    return by_topic


def _sum_known(numbers: Iterable[int | None]) -> int | None:
    known_numbers = [number for number in numbers if number is not None]
    return sum(known_numbers) if known_numbers else None
