"""Options of the sources and the sinks, typed and checked before a query does anything.

Names are those of Spark's Kafka source where the meaning is the same, and Kafka's own otherwise.
What begins with `kafka.` is passed to the client, security included. An unknown option is refused
by name: Spark itself would pass it over, and a misspelt limit would go unnoticed until production.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.client.settings import Settings

BOOTSTRAP = "kafka.bootstrap.servers"
#: Options of Spark's Kafka source that mean nothing here, and what to use in their place.
ELSEWHERE = {
    "assign": "a share group assigns partitions by itself; use subscribe",
    "subscribePattern": "share groups take topic names alone; use subscribe",
    "startingOffsets": "set share.auto.offset.reset of the group",
    "startingTimestamp": "set share.auto.offset.reset of the group",
    "endingOffsets": "use Trigger.AvailableNow",
    "maxOffsetsPerTrigger": "use maxRecordsPerTrigger",
    "isolation.level": "set share.isolation.level of the group",
    "kafka.group.id": "use group.id",
}


class InvalidOption(ValueError):
    """An option is unknown, missing, contradictory or out of bounds; the message names it."""


@dataclass(frozen=True)
class Connection:
    """Where the cluster is, and the client properties that were given with `kafka.`."""

    bootstrap: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def settings(self) -> Settings:
        """The client's settings. Raises `InvalidOption` for a property it does not know."""
        try:
            return Settings.of(self.bootstrap, dict(self.properties))
        except Exception as error:  # a user's words, whatever the client makes of them
            raise InvalidOption(f"kafka.*: {error}") from None


@dataclass(frozen=True)
class SourceOptions:
    """What `readStream.format("sharegroup")` was asked for. Counts are records, sizes bytes."""

    connection: Connection
    group_id: str
    topics: tuple[str, ...]
    include_headers: bool
    min_partitions: int
    max_records: int
    max_bytes: int
    target_ms: int
    max_delivery_count: int
    renew: bool
    strict_limit: bool
    max_wait_ms: int
    fail_on_data_loss: bool
    outcomes_dir: str

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises `InvalidOption`."""
        words = Words(
            given, "group.id", "subscribe", "includeHeaders", "minPartitions",
            "maxRecordsPerTrigger", "maxBytesPerTrigger", "batch.target.ms", "maxDeliveryCount",
            "share.renew", "share.acquire.mode", "fetch.max.wait.ms", "failOnDataLoss",
            "outcomes.dir",
        )  # fmt: skip
        connection = words.connection()
        group = words.required("group.id")
        topics = words.names("subscribe")
        mode = words.one_of("share.acquire.mode", "record_limit", "batch_optimized")
        return cls(
            connection=connection,
            group_id=group,
            topics=topics,
            include_headers=words.flag("includeHeaders", False),
            min_partitions=words.number("minPartitions", 0, 1, 100_000),
            max_records=words.number("maxRecordsPerTrigger", 10_000, 1, 10_000_000),
            max_bytes=words.number("maxBytesPerTrigger", 256 << 20, 1024, 2**31 - 1),
            target_ms=words.number("batch.target.ms", 0, 0, 3_600_000),
            max_delivery_count=words.number("maxDeliveryCount", 0, 1, 1000),
            renew=words.flag("share.renew", True),
            strict_limit=mode == "record_limit",
            max_wait_ms=words.number("fetch.max.wait.ms", 500, 0, 60_000),
            fail_on_data_loss=words.flag("failOnDataLoss", True),
            outcomes_dir=words.get("outcomes.dir") or outcomes_dir(connection.bootstrap, group),
        )


@dataclass(frozen=True)
class GroupOptions:
    """What the outcome sink and the lag source were asked for."""

    connection: Connection
    group_ids: tuple[str, ...]
    outcomes_dir: str = ""

    @classmethod
    def of_outcomes(cls, given: Mapping[str, str]) -> GroupOptions:
        """One group, whose source runs on the same driver. Raises `InvalidOption`."""
        words = Words(given, "group.id", "outcomes.dir", "checkpointLocation")
        connection, group = words.connection(), words.required("group.id")
        place = words.get("outcomes.dir") or outcomes_dir(connection.bootstrap, group)
        return cls(connection, (group,), place)

    @classmethod
    def of_lag(cls, given: Mapping[str, str]) -> GroupOptions:
        """Several groups; none named means all of them. Raises `InvalidOption`."""
        words = Words(given, "group.id")
        named = words.get("group.id")
        return cls(words.connection(), words.names("group.id") if named else ())


@dataclass(frozen=True)
class TopicOptions:
    """What the producing sink and the dead-letter source were asked for."""

    connection: Connection
    topic: str
    compression: str = "none"

    @classmethod
    def of_sink(cls, given: Mapping[str, str]) -> TopicOptions:
        """`topic` may stay away where rows have a column of that name. Raises `InvalidOption`."""
        words = Words(given, "topic", "compression", "checkpointLocation")
        codec = words.one_of("compression", "none", "gzip", "snappy", "lz4", "zstd")
        return cls(words.connection(), words.get("topic"), codec)

    @classmethod
    def of_dead_letters(cls, given: Mapping[str, str]) -> TopicOptions:
        """Raises `InvalidOption`."""
        words = Words(given, "topic")
        return cls(words.connection(), words.required("topic"))


def outcomes_dir(bootstrap: str, group_id: str) -> str:
    """Where outcomes of rows pass from sinks to the source of the same group on one driver."""
    name = hashlib.sha256(f"{bootstrap}\n{group_id}".encode()).hexdigest()[:16]
    return str(Path(tempfile.gettempdir(), f"shoal-outcomes-{os.getuid()}", name))


class Words:
    """Options as Spark hands them over, their names without case; those not known are refused."""

    def __init__(self, given: Mapping[str, str], *known: str) -> None:
        names = {name.lower(): name for name in known}
        hints = {name.lower(): (name, hint) for name, hint in ELSEWHERE.items()}
        self._own: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        for name, value in given.items():
            lower = name.lower()
            if lower in names:
                self._own[names[lower]] = value.strip()
            elif lower in hints:
                raise InvalidOption("option {!r} does not apply here: {}".format(*hints[lower]))
            elif lower.startswith("kafka."):
                self._kafka[lower.removeprefix("kafka.")] = value
            elif lower != "path":
                raise InvalidOption(
                    f"unknown option {name!r}; known are {BOOTSTRAP}, kafka.* and "
                    + ", ".join(sorted(known))
                )

    def connection(self) -> Connection:
        bootstrap = self._kafka.pop("bootstrap.servers", "").strip()
        if not bootstrap:
            raise InvalidOption(f"option {BOOTSTRAP!r} is missing")
        found = Connection(bootstrap, tuple(sorted(self._kafka.items())))
        _ = found.settings
        return found

    def get(self, name: str) -> str:
        return self._own.get(name, "")

    def required(self, name: str) -> str:
        if not self.get(name):
            raise InvalidOption(f"option {name!r} is missing")
        return self.get(name)

    def names(self, name: str) -> tuple[str, ...]:
        """Names separated by commas, sorted, each once."""
        found = sorted({part.strip() for part in self.required(name).split(",")} - {""})
        if not found:
            raise InvalidOption(f"option {name!r} names nothing; separate names by commas")
        return tuple(found)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.get(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise InvalidOption(f"option {name!r} is {text!r}, not a whole number") from None
        if not low <= value <= high:
            raise InvalidOption(f"option {name!r} is {value}; it must lie between {low} and {high}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, str(default).lower(), "true", "false") == "true"

    def one_of(self, name: str, default: str, *others: str) -> str:
        text = self.get(name).lower() or default
        allowed = list(dict.fromkeys((default, *others)))
        if text not in allowed:
            raise InvalidOption(f"option {name!r} is {text!r}; it must be {' or '.join(allowed)}")
        return text
