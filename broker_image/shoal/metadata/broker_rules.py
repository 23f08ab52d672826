"""What no single broker config tells: values that do not go together.

The server asks before it starts, and an alteration while brokers run is asked about too; the
sentences are those of Apache Kafka 4.3.1, whose KafkaConfig refuses the same. What a configuration
written by an earlier release holds is never looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.metadata.configs import GROUP, TOPIC, Values, inherited

#: Pairs of which the first may not be less than the second.
_AT_LEAST = (
    ("group.share.max.share.sessions", "group.share.max.size"),
    ("replica.socket.timeout.ms", "replica.fetch.wait.max.ms"),
    ("replica.lag.time.max.ms", "replica.fetch.wait.max.ms"),
)
#: Memory that a thread of the cleaner needs.
_DEDUPE_BYTES_MIN = 1 << 20


def contradiction(values: Values) -> str | None:
    """Why these values of all broker configs cannot be in force together, or None."""
    return next(_contradictions(values), None)


def _contradictions(values: Values) -> Iterator[str]:
    yield from _bounds_of_groups(values)
    for greater, least in _AT_LEAST:
        if values[greater] < values[least]:
            yield f"{greater} must be greater than or equal to {least}"
    retention_ms = inherited(TOPIC, values)["retention.ms"]
    if retention_ms == 0 or retention_ms < -1:
        yield "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    if 0 < values["queued.max.request.bytes"] < values["socket.request.max.bytes"]:
        yield "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
    if (
        values["log.cleaner.dedupe.buffer.size"] // values["log.cleaner.threads"]
        <= _DEDUPE_BYTES_MIN
    ):
        yield "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    if not values["group.consumer.assignors"]:
        yield "group.consumer.assignors must not be empty"


def _bounds_of_groups(values: Values) -> Iterator[str]:
    """The bounds of group configs (KIP-1240), in order, hold what groups have without their own."""
    for key in GROUP.values():
        low, high = key.bounds
        own = key.synonyms[0].name if key.synonyms else None
        if low and high and values[high] < values[low]:
            yield f"{high} must be greater than or equal to {low}"
        if low and own and values[own] < values[low]:
            yield f"{own} must be greater than or equal to {low}"
        if high and own and values[own] > values[high]:
            yield f"{own} must be less than or equal to {high}"
    for kind in ("consumer", "share", "streams"):
        interval, timeout = (
            f"group.{kind}.heartbeat.interval.ms",
            f"group.{kind}.session.timeout.ms",
        )
        if values[interval] >= values[timeout]:
            yield f"{interval} must be less than {timeout}"
