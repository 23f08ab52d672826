"""Decisions on configs of topics, brokers, groups and client metrics. Pure; see `controller`.

A resource is altered completely or not at all. Each resource has its own error, and one error does
not affect the others. Sources: KIP-226, KIP-339, KIP-714, KIP-1240.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata import broker_rules, client_metrics, configs, listener_configs, names
from shoal.metadata.config_keys import ConfigError, ConfigKey, Scope, Type, text_of
from shoal.metadata.configs import GROUP, TOPIC, Layers
from shoal.metadata.controller import Decision
from shoal.metadata.image import MetadataImage, ResourceType
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """A change of one config; `operation` is a number from the request."""

    name: str
    value: str | None
    operation: int = Operation.SET


class Alteration(NamedTuple):
    """The requested changes of one resource."""

    resource_type: int
    resource_name: str
    changes: Sequence[Change]

    @property
    def key(self) -> tuple[int, str]:
        return self.resource_type, self.resource_name


class _Refused(Exception):
    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def alter_configs(
    image: MetadataImage,
    alterations: Sequence[Alteration],
    *,
    incremental: bool,
    validate_only: bool = False,
) -> Decision:
    """Alter resources; the response has AlterConfigs' results in the order of `alterations`.

    Unless `incremental`, the changes replace all configs of the resource (the old AlterConfigs).
    """
    records: list[MetadataRecord] = []
    results = []
    times = Counter(alteration.key for alteration in alterations)
    for alteration in alterations:
        code, message = ErrorCode.none, None
        try:
            if times[alteration.key] > 1:
                raise _invalid("Each resource must appear at most once.")
            records += _alter(image, alteration, incremental)
        except _Refused as refused:
            code, message = refused.code, refused.message
        results.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": alteration.resource_type,
                "resource_name": alteration.resource_name,
            }
        )
    return Decision([] if validate_only else records, results)


def _invalid(message: str) -> _Refused:
    return _Refused(ErrorCode.invalid_request, message)


def _alter(image: MetadataImage, asked: Alteration, incremental: bool) -> list[MetadataRecord]:
    """Return the records of one resource's alteration. Raises `_Refused`."""
    changed = [change.name for change in asked.changes]
    if len(set(changed)) < len(changed):
        raise _invalid("Error due to duplicate config keys")
    without = [c.name for c in asked.changes if c.value is None and c.operation != Operation.DELETE]
    if without:
        raise _invalid(f"Null value not supported for : {', '.join(without)}")
    before = image.configs.get(asked.key, configs.NONE)
    after = _altered(image, asked, incremental)
    check = _CHECKS.get(asked.resource_type)
    if check is None:
        raise _invalid(f"Unknown resource type {asked.resource_type}")
    check(image, asked.resource_name, after)
    touched = {**before, **after} if not incremental else dict.fromkeys(changed)
    return [
        MetadataRecord(
            "ConfigRecord",
            {
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
                "name": name,
                "value": after.get(name),
            },
        )
        for name in sorted(touched)
        if before.get(name) != after.get(name)
        # Brokers read files again that a config names, also if it stays the same (KAFKA-14136).
        or (asked.resource_type == ResourceType.BROKER and name in changed and name in after)
    ]


def altered(image: MetadataImage, asked: Alteration, *, incremental: bool) -> dict[str, str] | None:
    """Return the configs of a resource after an alteration, unchecked; None for one that cannot be
    read."""
    try:
        return _altered(image, asked, incremental)
    except _Refused:
        return None


def _altered(image: MetadataImage, asked: Alteration, incremental: bool) -> dict[str, str]:
    after = dict(image.configs.get(asked.key, configs.NONE)) if incremental else {}
    for change in asked.changes:
        value = _changed(image, asked.resource_type, change, after.get(change.name))
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = value
    return after


def _changed(
    image: MetadataImage, resource_type: int, change: Change, present: str | None
) -> str | None:
    """Return a config's text after one operation; None removes it."""
    if change.operation == Operation.SET:
        return change.value
    if change.operation == Operation.DELETE:
        return None
    if change.operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise _invalid(f"Unknown operations type {change.operation}")
    key = _key(resource_type, change.name)
    assert change.value is not None
    if key is None or key.type is not Type.LIST:
        raise _Refused(
            ErrorCode.invalid_config,
            f"Can't {Operation(change.operation).name} to key {change.name} because its type is "
            "not LIST.",
        )
    if present is None:
        present = text_of(_default(image, resource_type, change.name)) or ""
    items = [item for item in present.split(",") if item]
    for item in change.value.split(","):
        if change.operation == Operation.APPEND and item not in items:
            items.append(item)
        elif change.operation == Operation.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


def _key(resource_type: int, name: str) -> ConfigKey | None:
    if resource_type == ResourceType.BROKER:
        return listener_configs.key_of(name)
    return _TABLES.get(resource_type, {}).get(name)


def _default(image: MetadataImage, resource_type: int, name: str) -> Any:
    """Return the value of a config that the resource does not set."""
    if resource_type == ResourceType.TOPIC:
        return image.topic_config("")[name]
    if resource_type == ResourceType.BROKER:
        override = listener_configs.split(name)
        return image.broker_config[name if override is None else override.target]
    return GROUP[name].default


#: Kafka's sentence for `remote.storage.enable=false` alone (KIP-950).
_DISABLED_AND_KEPT = (
    "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
    "remote data and turn to read only, please set "
    "`remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote "
    "storage and delete all remote data, please set "
    "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
)


def checked_topic_configs(image: MetadataImage, own: Mapping[str, str]) -> str | None:
    """Return why a topic cannot have the configs `own`, or None."""
    try:
        values = {**image.topic_config(""), **configs.parse(TOPIC, own)}
    except ConfigError as error:
        return str(error)
    if values["min.compaction.lag.ms"] > values["max.compaction.lag.ms"]:
        return (
            "conflict topic config setting min.compaction.lag.ms "
            f"({values['min.compaction.lag.ms']}) > max.compaction.lag.ms "
            f"({values['max.compaction.lag.ms']})"
        )
    return _remote_storage_refusal(image, values)


def _remote_storage_refusal(image: MetadataImage, values: Mapping[str, Any]) -> str | None:
    """Return why a topic with these effective configs cannot be tiered, or None. The sentences are
    those of Apache Kafka 4.3.1."""
    if not values["remote.storage.enable"]:
        return None
    if not image.broker_config["remote.log.storage.system.enable"]:
        return (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    compacts = image.broker_config["shoal.remote.compacted.topics.enable"]
    if "compact" in values["cleanup.policy"] and not compacts:
        return (
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy "
            "being an empty list."
        )
    for unit in ("bytes", "ms"):
        name, whole = f"local.retention.{unit}", f"retention.{unit}"
        local, total = values[name], values[whole]
        if local == -2 or total == -1:
            continue
        if local == -1:
            reason = f"Value must not be -1 as {whole} value is set as {total}."
            return str(ConfigError(name, local, reason))
        if local > total:
            reason = f"Value must not be more than {whole} property value: {total}"
            return str(ConfigError(name, local, reason))
    return _copy_disable_refusal(values) if values["remote.log.copy.disable"] else None


def _copy_disable_refusal(values: Mapping[str, Any]) -> str | None:
    for unit in ("bytes", "ms"):
        local, total = values[f"local.retention.{unit}"], values[f"retention.{unit}"]
        if local not in (-2, total):
            return (
                f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and "
                f"`retention.{unit}` must be set to the identical value because there will be no "
                "more logs copied to the remote storage."
            )
    return None


def _check_topic(image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if not name:
        raise _invalid("Default topic resources are not allowed.")
    reason = names.invalid_topic(name)
    if reason is not None:
        raise _Refused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")
    reason = checked_topic_configs(image, after)
    if reason is not None:
        raise _Refused(ErrorCode.invalid_config, reason)
    if name not in image.topics:
        raise _Refused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    parsed = configs.parse(TOPIC, after)
    enabled = parsed.get("remote.storage.enable", False)
    if enabled and name in names.INTERNAL_TOPICS:
        raise _Refused(ErrorCode.invalid_config, f"The internal topic '{name}' cannot be tiered.")
    deletes = parsed.get("remote.log.delete.on.disable", False)
    if not enabled and not deletes and image.topic_config(name)["remote.storage.enable"]:
        raise _Refused(ErrorCode.invalid_config, _DISABLED_AND_KEPT)


def _check_broker(image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if name:
        try:
            broker_id = int(name)
        except ValueError:
            raise _invalid(f"Node id must be an integer, but it is: {name}") from None
        if broker_id not in image.brokers:
            raise _invalid(f"Unexpected broker id {name}: no such broker is registered")
    try:
        listener_configs.parse(after)
    except ConfigError as error:
        raise _invalid(str(error)) from None
    scopes = {n: key.scope for n in sorted(after) if (key := listener_configs.key_of(n))}
    fixed = [n for n, scope in scopes.items() if scope is Scope.READ_ONLY]
    if fixed:
        raise _invalid(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    without_prefix = [n for n in scopes if n in listener_configs.SECURITY]
    if without_prefix:
        raise _invalid(
            "These security configs can be dynamically updated only per-listener using the listener"
            f" prefix: {', '.join(without_prefix)}"
        )
    single = [n for n, scope in scopes.items() if scope is Scope.PER_BROKER]
    if single and not name:
        raise _invalid(f"Cannot update these configs at default cluster level: {', '.join(single)}")
    own, default, static = image.layers
    layers = Layers(after, default, static) if name else Layers(own, after, static)
    reason = broker_rules.contradiction(configs.broker_values(layers))
    if reason is not None and not broker_rules.contradiction(image.broker_config):
        raise _invalid(reason)


def _check_group(image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if not name:
        raise _invalid("Default group resources are not allowed.")
    try:
        values = configs.override(GROUP, image.group_config(""), {})
        values |= configs.parse(GROUP, after)
    except ConfigError as error:
        raise _Refused(ErrorCode.invalid_config, str(error)) from None
    reason = configs.out_of_bounds(values, image.broker_config)
    for kind in ("consumer", "share", "streams"):
        if values[f"{kind}.heartbeat.interval.ms"] >= values[f"{kind}.session.timeout.ms"]:
            reason = reason or (
                f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
            )
    if reason is not None:
        raise _Refused(ErrorCode.invalid_config, reason)


def _check_client_metrics(_image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if not name:
        raise _invalid("Subscription name can't be empty")
    try:
        values = client_metrics.parse(after)
    except ConfigError as error:
        raise _invalid(str(error)) from None
    try:
        client_metrics.patterns(values.get("match", ()))
    except ConfigError as error:
        raise _Refused(ErrorCode.invalid_config, str(error)) from None


_TABLES = {ResourceType.TOPIC: TOPIC, ResourceType.GROUP: GROUP}
_CHECKS = {
    ResourceType.TOPIC: _check_topic,
    ResourceType.BROKER: _check_broker,
    ResourceType.GROUP: _check_group,
    ResourceType.CLIENT_METRICS: _check_client_metrics,
}
