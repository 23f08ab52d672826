"""Checks of broker configs that depend on several values.

The server checks before it starts, and before configs are altered at run time. The errors have the
text of Apache Kafka 4.4.0, whose KafkaConfig makes the same checks. Configs that an earlier release
stored are not checked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.config_keys import ConfigError
from shoal.metadata.configs import GROUP, TOPIC, Values, resolve_inherited

if TYPE_CHECKING:
    from collections.abc import Iterator

CORDONED = "cordoned.log.dirs"
#: Pairs whose first value must be at least the second.
_AT_LEAST = (
    ("group.share.max.share.sessions", "group.share.max.size"),
    ("replica.socket.timeout.ms", "replica.fetch.wait.max.ms"),
    ("replica.lag.time.max.ms", "replica.fetch.wait.max.ms"),
)
#: Minimum memory per cleaner thread.
_DEDUPE_BYTES_MIN = 1 << 20


def find_contradiction(values: Values) -> str | None:
    """Return why these broker configs contradict each other, or None."""
    return next(_find_contradictions(values), None)


def _find_contradictions(values: Values) -> Iterator[str]:
    yield from _check_group_bounds(values)
    for greater, least in _AT_LEAST:
        if values[greater] < values[least]:
            yield f"{greater} must be greater than or equal to {least}"
    retention_ms = resolve_inherited(TOPIC, values)["retention.ms"]
    if retention_ms == 0 or retention_ms < -1:
        yield "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    if 0 < values["queued.max.request.bytes"] < values["socket.request.max.bytes"]:
        yield "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
    if (
        values["log.cleaner.dedupe.buffer.size"] // values["log.cleaner.threads"]
        <= _DEDUPE_BYTES_MIN
    ):
        yield "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    if values["remote.log.storage.system.enable"] and not values["shoal.remote.store.url"]:
        yield (
            "remote.log.storage.system.enable needs an object store: set shoal.remote.store.url, "
            "for instance to s3://bucket/prefix"
        )
    key_id, directory = (f"shoal.remote.encryption.key.{name}" for name in ("id", "directory"))
    if values[key_id] and not values[directory]:
        yield f"{key_id} needs a key ring: set {directory} to the directory that has the key"
    for name in ("group.consumer.assignors", "group.share.assignors"):
        if not values[name]:
            yield f"{name} must not be empty"


def find_retention_error(values: Values) -> str | None:
    """Return why these brokers' defaults of tiered topics contradict each other, or None. Kafka
    checks them when configs are altered, and not when a broker starts."""
    inherited = resolve_inherited(TOPIC, values)
    errors = [_find_local_error(values, inherited, unit) for unit in ("ms", "bytes")]
    errors += [_find_lag_error(values, inherited, unit) for unit in ("ms", "bytes")]
    error = next(filter(None, errors), None)
    if error is None:
        return None
    return (
        f"Invalid value org.apache.kafka.common.config.ConfigException: {error} for configuration"
        " Invalid dynamic configuration"
    )


def _find_local_error(values: Values, inherited: Values, unit: str) -> ConfigError | None:
    name, total = f"log.local.retention.{unit}", inherited[f"retention.{unit}"]
    local = values[name]
    if local == -2 or total == -1 or 0 <= local <= total:
        return None
    if local == -1:
        reason = f"Value must not be -1 as log.retention.{unit} value is set as {total}."
    else:
        reason = f"Value must not be more than log.retention.{unit} property value: {total}"
    return ConfigError(name, local, reason)


def _find_lag_error(values: Values, inherited: Values, unit: str) -> ConfigError | None:
    name, local = f"log.remote.copy.lag.{unit}", values[f"log.local.retention.{unit}"]
    kept = inherited[f"retention.{unit}"] if local == -2 else local
    if not 0 <= kept < values[name]:
        return None
    reason = f"Value must not exceed log.local.retention.{unit} (effective value: {kept})"
    return ConfigError(name, values[name], reason)


def find_foreign_cordon(values: Values) -> str | None:
    """Return why these log directories cannot be cordoned, or None (KIP-1066). Only the broker
    itself knows its directories."""
    cordoned = values[CORDONED]
    if "*" in cordoned:
        if len(cordoned) == 1:
            return None
        return f"requirement failed: When {CORDONED} is set to *, it must not contain other values"
    directories = values["log.dirs"] or values["log.dir"]
    missing = [name for name in cordoned if name not in directories]
    if not missing:
        return None
    return (
        f"requirement failed: All entries in {CORDONED} must be present in log.dirs or log.dir."
        f" Missing entries : {', '.join(missing)}"
    )


def _check_group_bounds(values: Values) -> Iterator[str]:
    """Check that group configs' bounds are ordered and include the brokers' defaults (KIP-1240)."""
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
