"""Options of the sources and the sinks, parsed and checked before a query starts.

Names are those of Spark's Kafka source if the meaning is the same, else Kafka's. Options with the
prefix `kafka.` go to the client, including security. An unknown option is refused by name: Spark
would ignore it, and a misspelt limit would stay unnoticed until production.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.properties import parse_properties
from shoal.client.queues import reserved_groups
from shoal.client.settings import Settings

from shoal_spark import outcome_files

if TYPE_CHECKING:
    from collections.abc import Mapping

BOOTSTRAP = "kafka.bootstrap.servers"
_START = "set share.auto.offset.reset of the group"
_LATER = "rows are accepted once their batch is complete, or by format sharegroup-outcome"
_BYTES = "keys and values are bytes; cast them in the query"
_AGAIN = "each task's producer is idempotent anyway, and a batch that runs again writes again"
#: Options of Spark's Kafka source and sink, and properties of Kafka's clients, that have no meaning
#: here, with their replacements.
ELSEWHERE = {
    "path": "name topics by subscribe or topic",
    "assign": "the share group assigns partitions; use subscribe",
    "subscribePattern": "share groups support topic names only; use subscribe",
    "groupIdPrefix": "use group.id",
    "startingOffsets": _START,
    "startingTimestamp": _START,
    "startingOffsetsByTimestamp": _START,
    "startingOffsetsByTimestampStrategy": _START,
    "endingOffsets": "use Trigger.AvailableNow",
    "endingTimestamp": "use Trigger.AvailableNow",
    "endingOffsetsByTimestamp": "use Trigger.AvailableNow",
    "maxOffsetsPerTrigger": "use maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "use a processingTime trigger, or batch.target.ms",
    "maxTriggerDelay": "use a processingTime trigger, or batch.target.ms",
    "maxRecordsPerPartition": "use minPartitions",
    "isolation.level": "set share.isolation.level of the group",
    "kafka.isolation.level": "set share.isolation.level of the group",
    "kafka.group.id": "use group.id",
    "kafka.auto.offset.reset": _START,
    "kafka.share.auto.offset.reset": _START,
    "kafka.enable.auto.commit": _LATER,
    "kafka.share.acknowledgement.mode": _LATER,
    "kafka.share.acquire.mode": "use share.acquire.mode",
    "kafka.max.poll.records": "use maxRecordsPerTrigger",
    "kafka.fetch.max.bytes": "use maxBytesPerTrigger",
    "kafka.max.partition.fetch.bytes": "use maxBytesPerTrigger",
    "kafka.fetch.max.wait.ms": "use fetch.max.wait.ms",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.compression.type": "use compression",
    "kafka.acks": "a sink waits for all replicas in sync, as acks=all does",
    "kafka.enable.idempotence": _AGAIN,
    "kafka.transactional.id": _AGAIN,
}
_AT = "use startingOffsets earliest or latest, or `shoal groups reset-offsets`"
_NOW = "use Trigger.AvailableNow"
_COMMIT = "the source commits a batch to the group once it is complete"
#: The same for the source of consumer groups.
ELSEWHERE_IN_GROUPS = {
    "path": ELSEWHERE["path"],
    "group.id": "use groupId",
    "assign": "all partitions of a topic are read; use subscribe",
    "subscribePattern": "only names are supported; use subscribe",
    "groupIdPrefix": "use groupId",
    "minPartitions": "use keyRanges",
    "startingTimestamp": _AT,
    "startingOffsetsByTimestamp": _AT,
    "startingOffsetsByTimestampStrategy": _AT,
    **dict.fromkeys(("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"), _NOW),
    "maxRecordsPerTrigger": "use maxOffsetsPerTrigger",
    "minOffsetsPerTrigger": "use a processingTime trigger",
    "maxTriggerDelay": "use a processingTime trigger",
    "maxRecordsPerPartition": "use maxOffsetsPerTrigger",
    "isolation.level": "use kafka.isolation.level",
    "kafka.group.id": "use groupId",
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": _COMMIT,
    "kafka.max.poll.records": "use maxOffsetsPerTrigger",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
}
#: Properties that have no effect under a given `kafka.security.get_protocol`.
_PROTOCOLS = {
    ("sasl.", "PLAINTEXT"): "SASL_SSL or SASL_PLAINTEXT",
    ("sasl.", "SSL"): "SASL_SSL",
    ("ssl.", "PLAINTEXT"): "SSL",
    ("ssl.", "SASL_PLAINTEXT"): "SASL_SSL",
}


_TOKEN_ID = "shoal.delegation.token.id"
_RACK = "client.rack"
#: The mechanisms of delegation tokens, and the one that is used if the query logs in by another.
SCRAM_MECHANISMS, TOKENS_BY = ("SCRAM-SHA-256", "SCRAM-SHA-512"), "SCRAM-SHA-512"
#: The variable that names a file with client properties, as for `shoal`.
COMMAND_CONFIG = "SHOAL_COMMAND_CONFIG"


def load_login() -> dict[str, str]:
    """Return the `kafka.` options of the file that SHOAL_COMMAND_CONFIG names, as references to it.

    Spark shows options in plans and logs, so these contain no values. Driver and executors read the
    file again for each connection. Raises `OSError`.
    """
    path = os.environ.get(COMMAND_CONFIG)
    login_properties = dict(parse_properties(Path(path).read_text())) if path else {}
    login_properties.pop(BOOTSTRAP.removeprefix("kafka."), None)
    return {f"kafka.{name}": f"${{file:{path}:{name}}}" for name in login_properties}


class InvalidOption(ValueError):
    """An option is unknown, missing, contradictory or out of bounds; the message names it."""


def check_columns(columns: list[str], own: list[str]) -> None:
    """Raise `InvalidOption` if the query's schema has other columns than the source; it may have
    none."""
    if columns not in ([], own):
        raise InvalidOption(
            f"the schema has the columns {', '.join(columns)}, and this source has "
            f"{', '.join(own)}; remove the schema and select columns"
        )


class TokenLogin(NamedTuple):
    """A delegation token as a login: SASL mechanism, id and password."""

    mechanism: str
    token_id: str
    password: str

    def __repr__(self) -> str:
        return f"TokenLogin({self.mechanism}, {self.token_id})"


@dataclass(frozen=True)
class ConnectionOptions:
    """The cluster's address, and the client properties from `kafka.` options."""

    bootstrap: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def may_use_tokens(self, required: bool | None) -> bool:
        """Whether executors may log in by delegation tokens: with SASL, and unless it is `required`
        only if this login is by SCRAM, which the brokers thus have."""
        security = self.settings.security
        return security.sasl and (bool(required) or security.mechanism in SCRAM_MECHANISMS)

    @property
    def token_mechanism(self) -> str:
        """The mechanism by which delegation tokens log in."""
        return self.settings.security.mechanism if self.may_use_tokens(None) else TOKENS_BY

    def with_token(self, login: TokenLogin) -> ConnectionOptions:
        """Return the connection of a client that logs in by a delegation token."""
        shared = self.without_login().properties
        own = (
            ("sasl.mechanism", login.mechanism),
            ("shoal.delegation.token.hmac", login.password),
            (_TOKEN_ID, login.token_id),
        )
        return ConnectionOptions(self.bootstrap, tuple(sorted((*shared, *own))))

    def with_rack(self, rack: str) -> ConnectionOptions:
        """Return the connection of a client in this rack, unless an option names another one."""
        properties = dict(self.properties)
        if not rack or _RACK in properties:
            return self
        return ConnectionOptions(self.bootstrap, tuple(sorted({**properties, _RACK: rack}.items())))

    @property
    def token_id(self) -> str:
        """The id of the delegation token; empty without one."""
        return dict(self.properties).get(_TOKEN_ID, "")

    def without_login(self) -> ConnectionOptions:
        """Return the connection without the user of SASL and the user's secrets."""
        remaining = (
            (name, value)
            for name, value in self.properties
            if not name.startswith(("sasl.", "shoal.delegation.token."))
        )
        return ConnectionOptions(self.bootstrap, tuple(remaining))

    @property
    def settings(self) -> Settings:
        """Return the client's settings. Raises `InvalidOption` for an unsupported property."""
        try:
            return Settings.from_bootstrap(self.bootstrap, dict(self.properties))
        except Exception as error:  # the user's text in the error, whatever the client makes of it
            raise InvalidOption(f"kafka.*: {error}") from None


@dataclass(frozen=True)
class SourceOptions:
    """Options of `readStream.format("sharegroup")`. Counts are records, sizes are bytes.

    `renew` is None if it was not set: locks are then renewed if the group allows it. `tokens` is
    None if it was not set: executors then log in by delegation tokens if the cluster issues them.
    """

    connection: ConnectionOptions
    group_id: str
    topics: tuple[str, ...]
    include_headers: bool
    include_decode_errors: bool
    min_partitions: int
    max_records: int
    max_bytes: int
    target_ms: int
    max_delivery_count: int
    renew: bool | None
    strict_limit: bool
    max_wait_ms: int
    fail_on_data_loss: bool
    outcomes_dir: str
    tokens: bool | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse options. Raises `InvalidOption`."""
        words = CaseInsensitiveOptions(
            options,
            "group.id",
            "subscribe",
            "includeHeaders",
            "includeDecodeErrors",
            "minPartitions",
            "maxRecordsPerTrigger",
            "maxBytesPerTrigger",
            "batch.target.ms",
            "maxDeliveryCount",
            "share.renew",
            "share.acquire.mode",
            "fetch.max.wait.ms",
            "failOnDataLoss",
            "outcomes.dir",
            "delegation.token.enable",
        )
        connection = words.build_connection()
        tokens = words.get_optional_flag("delegation.token.enable")
        if tokens and not connection.settings.security.sasl:
            raise InvalidOption(
                "option 'delegation.token.enable' is true, and 'kafka.security.protocol' is "
                f"{connection.settings.security.protocol}: tokens log in by SASL; set it to "
                "SASL_SSL, or leave the option out"
            )
        group = words.get_group("group.id")
        topics = words.get_names("subscribe")
        mode = words.get_choice("share.acquire.mode", "record_limit", "batch_optimized")
        least = words.get_number("minPartitions", 0, 1, 100_000)
        most = words.get_number("maxRecordsPerTrigger", 10_000, 1, 10_000_000)
        if least > most:
            raise InvalidOption(
                f"option 'minPartitions' is {least}, and 'maxRecordsPerTrigger' is {most}: a task "
                "needs a record; raise 'maxRecordsPerTrigger' or lower 'minPartitions'"
            )
        return cls(
            connection=connection,
            group_id=group,
            topics=topics,
            include_headers=words.get_flag("includeHeaders", False),
            include_decode_errors=words.get_flag("includeDecodeErrors", False),
            min_partitions=least,
            max_records=most,
            max_bytes=words.get_number("maxBytesPerTrigger", 256 << 20, 1024, 2**31 - 1),
            target_ms=words.get_number("batch.target.ms", 0, 0, 3_600_000),
            max_delivery_count=words.get_number("maxDeliveryCount", 0, 1, 1000),
            renew=words.get_optional_flag("share.renew"),
            strict_limit=mode == "record_limit",
            max_wait_ms=words.get_number("fetch.max.wait.ms", 500, 0, 60_000),
            fail_on_data_loss=words.get_flag("failOnDataLoss", True),
            outcomes_dir=words.get("outcomes.dir") or get_outcomes_dir(connection.bootstrap, group),
            tokens=tokens,
        )


@dataclass(frozen=True)
class KeyRangeOptions:
    """Options of `readStream.format("consumergroup")`. `max_offsets` is 0 for no limit."""

    connection: ConnectionOptions
    group_id: str
    topics: tuple[str, ...]
    include_headers: bool
    key_ranges: int
    from_earliest: bool
    max_offsets: int
    max_wait_ms: int
    read_committed: bool
    fail_on_data_loss: bool

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KeyRangeOptions:
        """Parse options. Raises `InvalidOption`."""
        words = CaseInsensitiveOptions(
            options,
            "groupId",
            "subscribe",
            "keyRanges",
            "startingOffsets",
            "maxOffsetsPerTrigger",
            "includeHeaders",
            "fetch.max.wait.ms",
            "kafka.isolation.level",
            "failOnDataLoss",
            elsewhere=ELSEWHERE_IN_GROUPS,
        )
        isolation = words.get_choice("kafka.isolation.level", "read_uncommitted", "read_committed")
        return cls(
            connection=words.build_connection(),
            group_id=words.get_group("groupId"),
            topics=words.get_names("subscribe"),
            include_headers=words.get_flag("includeHeaders", False),
            key_ranges=words.get_number("keyRanges", 1, 1, 256),
            from_earliest=words.get_choice("startingOffsets", "latest", "earliest") == "earliest",
            max_offsets=words.get_number("maxOffsetsPerTrigger", 0, 1, 2**62),
            max_wait_ms=words.get_number("fetch.max.wait.ms", 500, 0, 60_000),
            read_committed=isolation == "read_committed",
            fail_on_data_loss=words.get_flag("failOnDataLoss", True),
        )


@dataclass(frozen=True)
class GroupOptions:
    """Options of the outcome sink and the lag source."""

    connection: ConnectionOptions
    group_ids: tuple[str, ...]
    outcomes_dir: str = ""

    @classmethod
    def from_outcome_options(cls, options: Mapping[str, str]) -> GroupOptions:
        """Parse options for one group, whose source runs on the same driver. Raises
        `InvalidOption`.
        """
        words = CaseInsensitiveOptions(options, "group.id", "outcomes.dir", "checkpointLocation")
        connection, group = words.build_connection(), words.get_required("group.id")
        place = words.get("outcomes.dir") or get_outcomes_dir(connection.bootstrap, group)
        return cls(connection, (group,), place)

    @classmethod
    def from_lag_options(cls, options: Mapping[str, str]) -> GroupOptions:
        """Parse options for several groups; none means all. Raises `InvalidOption`."""
        words = CaseInsensitiveOptions(options, "group.id")
        group_names = words.get("group.id")
        return cls(words.build_connection(), words.get_names("group.id") if group_names else ())


@dataclass(frozen=True)
class TopicOptions:
    """Options of the producing sink and the dead-letter source."""

    connection: ConnectionOptions
    topic: str
    compression: str = "none"

    @classmethod
    def from_sink_options(cls, options: Mapping[str, str]) -> TopicOptions:
        """Parse options; `topic` is optional if rows have this column. Raises `InvalidOption`."""
        words = CaseInsensitiveOptions(options, "topic", "compression", "checkpointLocation")
        codec = words.get_choice("compression", "none", "gzip", "snappy", "lz4", "zstd")
        return cls(words.build_connection(), words.get("topic"), codec)

    @classmethod
    def from_dead_letter_options(cls, options: Mapping[str, str]) -> TopicOptions:
        """Parse options. Raises `InvalidOption`."""
        words = CaseInsensitiveOptions(options, "topic")
        return cls(words.build_connection(), words.get_required("topic"))


def get_outcomes_dir(bootstrap: str, group_id: str) -> str:
    """Return the directory for outcome files between sinks and source of a group on one driver."""
    name = hashlib.sha256(f"{bootstrap}\n{group_id}".encode()).hexdigest()[:16]
    return str(outcome_files.get_own_folder() / name)


class CaseInsensitiveOptions:
    """Options as Spark passes them, with case-insensitive names; unknown names are refused."""

    def __init__(
        self,
        options: Mapping[str, str],
        *known_names: str,
        elsewhere: Mapping[str, str] = ELSEWHERE,
    ) -> None:
        names = {name.lower(): name for name in known_names}
        hints = {name.lower(): (name, hint) for name, hint in elsewhere.items()}
        self._own: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if lower in names:
                self._own[names[lower]] = value.strip()
            elif lower in hints:
                raise InvalidOption("option {!r} does not apply here: {}".format(*hints[lower]))
            elif lower.startswith("kafka."):
                self._kafka[lower.removeprefix("kafka.")] = value
            else:
                raise InvalidOption(
                    f"unknown option {name!r}; known are {BOOTSTRAP}, kafka.* and "
                    + ", ".join(sorted(known_names))
                )

    def build_connection(self) -> ConnectionOptions:
        bootstrap = self._kafka.pop("bootstrap.servers", "").strip()
        if not bootstrap:
            raise InvalidOption(f"option {BOOTSTRAP!r} is missing")
        connection = ConnectionOptions(bootstrap, tuple(sorted(self._kafka.items())))
        protocol = connection.settings.security.protocol
        for (prefix, used_protocol), needed_protocol in _PROTOCOLS.items():
            vain = [n for n, value in connection.properties if n.startswith(prefix) and value]
            if used_protocol == protocol and vain:
                raise InvalidOption(
                    f"options {', '.join(repr(f'kafka.{name}') for name in vain)} have no "
                    f"effect while 'kafka.security.protocol' is {protocol}: set it to "
                    f"{needed_protocol}, "
                    "or remove them"
                )
        return connection

    def get(self, name: str) -> str:
        return self._own.get(name, "")

    def get_required(self, name: str) -> str:
        if not self.get(name):
            raise InvalidOption(f"option {name!r} is missing")
        return self.get(name)

    def get_group(self, name: str) -> str:
        """Return the group that the query is to join. Raises `InvalidOption` if it is reserved."""
        group = self.get_required(name)
        if reserved_groups.is_reserved(group):
            raise InvalidOption(f"option {name!r}: {reserved_groups.format_refusal(group)}")
        return group

    def get_names(self, name: str) -> tuple[str, ...]:
        """Return comma-separated names, sorted, without duplicates."""
        names = sorted({part.strip() for part in self.get_required(name).split(",")} - {""})
        if not names:
            raise InvalidOption(f"option {name!r} is empty; separate names by commas")
        return tuple(names)

    def get_number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.get(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise InvalidOption(f"option {name!r} is {text!r}, not a whole number") from None
        if not low <= value <= high:
            raise InvalidOption(f"option {name!r} is {value}; it must be between {low} and {high}")
        return value

    def get_flag(self, name: str, default: bool) -> bool:
        return self.get_choice(name, str(default).lower(), "true", "false") == "true"

    def get_optional_flag(self, name: str) -> bool | None:
        """Return None if it is not set."""
        return self.get_flag(name, True) if self.get(name) else None

    def get_choice(self, name: str, default: str, *others: str) -> str:
        text = self.get(name).lower() or default
        allowed = list(dict.fromkeys((default, *others)))
        if text not in allowed:
            raise InvalidOption(f"option {name!r} is {text!r}; it must be {' or '.join(allowed)}")
        return text
