"""Decisions on configs of topics, brokers, groups and client metrics. Pure; see `controller`.

A resource is altered completely or not at all. Each resource has its own error, and one error does
not affect the others. Sources: KIP-226, KIP-339, KIP-714, KIP-1240.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata import (
    broker_rules,
    client_metrics,
    configs,
    listener_configs,
    min_insync_replicas,
    names,
)
from shoal.metadata.brokers import CORDON_LEVEL
from shoal.metadata.config_keys import ConfigError, ConfigKey, ConfigScope, ConfigType, format_value
from shoal.metadata.configs import GROUP, TOPIC, ConfigLayers
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.metadata.min_insync_replicas import MIN_ISR
from shoal.metadata.partition_changes import end_eligibility
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.protocol.responses import topics as responses

#: Bytes of a config's text: more fit into no string of a response.
VALUE_BYTES_MAX = 32_767


class AlterConfigOperation(IntEnum):
    """Operations of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one config; `operation` is a number from the request."""

    name: str
    value: str | None
    operation: int = AlterConfigOperation.SET


class ConfigAlteration(NamedTuple):
    """The requested changes of one resource."""

    resource_type: int
    resource_name: str
    changes: Sequence[ConfigChange]

    @property
    def key(self) -> tuple[int, str]:
        return self.resource_type, self.resource_name


class _AlterationRefused(Exception):
    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def alter_configs(
    image: MetadataImage,
    alterations: Sequence[ConfigAlteration],
    *,
    incremental: bool,
    validate_only: bool = False,
) -> ControllerResult:
    """Alter resources; the response has AlterConfigs' results in the order of `alterations`.

    Unless `incremental`, the changes replace all configs of the resource (the old AlterConfigs).
    """
    records: list[MetadataRecord] = []
    results: list[responses.AlterConfigsResourceResponse] = []
    times = Counter(alteration.key for alteration in alterations)
    for alteration in alterations:
        code, message = ErrorCode.none, None
        try:
            if times[alteration.key] > 1:
                raise _build_invalid_error("Each resource must appear at most once.")
            records += _alter(image, alteration, incremental)
        except _AlterationRefused as refused:
            code, message = refused.code, refused.message
        results.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": alteration.resource_type,
                "resource_name": alteration.resource_name,
            }
        )
    return ControllerResult([] if validate_only else records, results)


def _build_invalid_error(message: str) -> _AlterationRefused:
    return _AlterationRefused(ErrorCode.invalid_request, message)


def _alter(
    image: MetadataImage, alteration: ConfigAlteration, incremental: bool
) -> list[MetadataRecord]:
    """Return the records of one resource's alteration. Raises `_AlterationRefused`."""
    changed = [change.name for change in alteration.changes]
    if len(set(changed)) < len(changed):
        raise _build_invalid_error("Error due to duplicate config keys")
    without = [
        c.name
        for c in alteration.changes
        if c.value is None and c.operation != AlterConfigOperation.DELETE
    ]
    if without:
        raise _build_invalid_error(f"Null value not supported for : {', '.join(without)}")
    before = image.configs.get(alteration.key, configs.NONE)
    after = _apply_alteration(image, alteration, incremental)
    check = _CHECKS.get(alteration.resource_type)
    if check is None:
        raise _build_invalid_error(f"Unknown resource type {alteration.resource_type}")
    check(image, alteration.resource_name, after)
    if alteration.resource_type == ConfigResourceType.BROKER:
        _check_min_isr(image, alteration, before, after)
    touched = {**before, **after} if not incremental else dict.fromkeys(changed)
    records = [
        MetadataRecord(
            "ConfigRecord",
            {
                "resource_type": alteration.resource_type,
                "resource_name": alteration.resource_name,
                "name": name,
                "value": after.get(name),
            },
        )
        for name in sorted(touched)
        if before.get(name) != after.get(name)
        # Brokers read files again that a config names, also if it stays the same (KAFKA-14136).
        or (
            alteration.resource_type == ConfigResourceType.BROKER
            and name in changed
            and name in after
        )
    ]
    if before.get(MIN_ISR) != after.get(MIN_ISR):
        records += _end_eligibility(image, alteration, after)
    return records


def _end_eligibility(
    image: MetadataImage, alteration: ConfigAlteration, after: Mapping[str, str]
) -> Iterator[MetadataRecord]:
    """Yield the changes of partitions that belong to another min.insync.replicas."""
    kind, name = alteration.key
    if kind == ConfigResourceType.TOPIC:
        values = {**image.resolve_topic_config(""), **configs.parse(TOPIC, after)}
        yield from end_eligibility(image.topics[name], values[MIN_ISR])
    elif not name:
        layers = ConfigLayers(configs.NONE, after, image.scope.static)
        min_isr = configs.resolve_broker_values(layers)[MIN_ISR]
        yield from min_insync_replicas.end_eligibility_by_default(image, min_isr)


def apply_alteration(
    image: MetadataImage, alteration: ConfigAlteration, *, incremental: bool
) -> dict[str, str] | None:
    """Return the configs of a resource after an alteration, unchecked; None for one that cannot be
    read."""
    try:
        return _apply_alteration(image, alteration, incremental)
    except _AlterationRefused:
        return None


def _apply_alteration(
    image: MetadataImage, alteration: ConfigAlteration, incremental: bool
) -> dict[str, str]:
    after = dict(image.configs.get(alteration.key, configs.NONE)) if incremental else {}
    for change in alteration.changes:
        value = _apply_operation(image, alteration.resource_type, change, after.get(change.name))
        if value is None:
            after.pop(change.name, None)
            continue
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise _AlterationRefused(
                ErrorCode.invalid_config,
                "The configuration value cannot be added because it exceeds the maximum value size"
                f" of {VALUE_BYTES_MAX} bytes.",
            )
        after[change.name] = value
    return after


def _apply_operation(
    image: MetadataImage, resource_type: int, change: ConfigChange, present: str | None
) -> str | None:
    """Return a config's text after one operation; None removes it."""
    if change.operation == AlterConfigOperation.SET:
        return change.value
    if change.operation == AlterConfigOperation.DELETE:
        return None
    if change.operation not in (AlterConfigOperation.APPEND, AlterConfigOperation.SUBTRACT):
        raise _build_invalid_error(f"Unknown operations type {change.operation}")
    key = _find_key(resource_type, change.name)
    assert change.value is not None
    if key is None and resource_type == ConfigResourceType.BROKER:
        message = f"Unknown config name: {change.name}"
        raise _AlterationRefused(ErrorCode.invalid_config, message)
    if key is None or key.type is not ConfigType.LIST:
        operation = AlterConfigOperation(change.operation).name
        raise _AlterationRefused(
            ErrorCode.invalid_config,
            f"Config value {operation.lower()} is not allowed for config key: {change.name}"
            if resource_type == ConfigResourceType.BROKER
            else f"Can't {operation} to key {change.name} because its type is not LIST.",
        )
    if present is None:
        present = format_value(_find_default(image, resource_type, change.name)) or ""
    items = [item for item in present.split(",") if item]
    for item in change.value.split(","):
        if change.operation == AlterConfigOperation.APPEND and item not in items:
            items.append(item)
        elif change.operation == AlterConfigOperation.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


def _find_key(resource_type: int, name: str) -> ConfigKey | None:
    if resource_type == ConfigResourceType.BROKER:
        return listener_configs.find_key(name)
    return _TABLES.get(resource_type, {}).get(name)


def _find_default(image: MetadataImage, resource_type: int, name: str) -> Any:
    """Return the value of a config that the resource does not set."""
    if resource_type == ConfigResourceType.TOPIC:
        return image.resolve_topic_config("")[name]
    if resource_type == ConfigResourceType.BROKER:
        override = listener_configs.split_name(name)
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


def find_topic_config_error(image: MetadataImage, own: Mapping[str, str]) -> str | None:
    """Return why a topic cannot have the configs `own`, or None."""
    try:
        values = {**image.resolve_topic_config(""), **configs.parse(TOPIC, own)}
    except ConfigError as error:
        return str(error)
    if values["min.compaction.lag.ms"] > values["max.compaction.lag.ms"]:
        return (
            "conflict topic config setting min.compaction.lag.ms "
            f"({values['min.compaction.lag.ms']}) > max.compaction.lag.ms "
            f"({values['max.compaction.lag.ms']})"
        )
    if values["shoal.deduplication.window.ms"] and "compact" in values["cleanup.policy"]:
        return (
            "shoal.deduplication.window.ms only supports topics without compaction, which removes "
            "the record that an id names. Set cleanup.policy=delete, or the window to 0."
        )
    return _find_remote_storage_error(image, values)


def _find_remote_storage_error(image: MetadataImage, values: Mapping[str, Any]) -> str | None:
    """Return why a topic with these effective configs cannot be tiered, or None. The sentences are
    those of Apache Kafka 4.4.0."""
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
        name, total_name = f"local.retention.{unit}", f"retention.{unit}"
        local, total = values[name], values[total_name]
        if local == -2 or total == -1:
            continue
        if local == -1:
            reason = f"Value must not be -1 as {total_name} value is set as {total}."
            return str(ConfigError(name, local, reason))
        if local > total:
            reason = f"Value must not be more than {total_name} property value: {total}"
            return str(ConfigError(name, local, reason))
    return _find_copy_lag_error(values) or (
        _find_copy_disable_error(values) if values["remote.log.copy.disable"] else None
    )


def _find_copy_lag_error(values: Mapping[str, Any]) -> str | None:
    """Return why segments would leave the local disk before they are copied, or None."""
    for unit in ("bytes", "ms"):
        name, local_name = f"remote.copy.lag.{unit}", f"local.retention.{unit}"
        lag, local = values[name], values[local_name]
        kept = values[f"retention.{unit}"] if local == -2 else local
        if 0 <= kept < lag:
            reason = f"Value must not exceed {local_name} (effective value: {kept})"
            return str(ConfigError(name, lag, reason))
    return None


def _find_copy_disable_error(values: Mapping[str, Any]) -> str | None:
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
        raise _build_invalid_error("Default topic resources are not allowed.")
    reason = names.find_topic_name_error(name)
    if reason is not None:
        raise _AlterationRefused(
            ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}"
        )
    reason = find_topic_config_error(image, after)
    if reason is not None:
        raise _AlterationRefused(ErrorCode.invalid_config, reason)
    if name not in image.topics:
        raise _AlterationRefused(
            ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
        )
    parsed = configs.parse(TOPIC, after)
    enabled = parsed.get("remote.storage.enable", False)
    if enabled and name in names.INTERNAL_TOPICS:
        raise _AlterationRefused(
            ErrorCode.invalid_config, f"The internal topic '{name}' cannot be tiered."
        )
    deletes = parsed.get("remote.log.delete.on.disable", False)
    if not enabled and not deletes and image.resolve_topic_config(name)["remote.storage.enable"]:
        raise _AlterationRefused(ErrorCode.invalid_config, _DISABLED_AND_KEPT)


def _check_broker(image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if name:
        try:
            broker_id = int(name)
        except ValueError:
            raise _build_invalid_error(f"Node id must be an integer, but it is: {name}") from None
        if broker_id not in image.brokers:
            raise _build_invalid_error(f"Unexpected broker id {name}: no such broker is registered")
    try:
        listener_configs.parse(after)
    except ConfigError as error:
        raise _build_invalid_error(str(error)) from None
    scopes = {n: key.scope for n in sorted(after) if (key := listener_configs.find_key(n))}
    fixed = [n for n, scope in scopes.items() if scope is ConfigScope.READ_ONLY]
    if fixed:
        raise _build_invalid_error(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    without_prefix = [n for n in scopes if n in listener_configs.SECURITY]
    if without_prefix:
        raise _build_invalid_error(
            "These security configs can be dynamically updated only per-listener using the listener"
            f" prefix: {', '.join(without_prefix)}"
        )
    single = [n for n, scope in scopes.items() if scope is ConfigScope.PER_BROKER]
    if single and not name:
        raise _build_invalid_error(
            f"Cannot update these configs at default cluster level: {', '.join(single)}"
        )
    _check_features(image, after)
    own, default, static = image.layers
    layers = ConfigLayers(after, default, static) if name else ConfigLayers(own, after, static)
    values = configs.resolve_broker_values(layers)
    for find_reason in (broker_rules.find_contradiction, broker_rules.find_retention_error):
        reason = find_reason(values)
        if reason is not None and not find_reason(image.broker_config):
            raise _build_invalid_error(reason)


def _check_features(image: MetadataImage, after: Mapping[str, str]) -> None:
    """Check the configs that the cluster's features restrict."""
    level = image.features.get("metadata.version", 0)
    if broker_rules.CORDONED in after and level < CORDON_LEVEL:
        raise _AlterationRefused(
            ErrorCode.invalid_config,
            f"The {broker_rules.CORDONED} configuration value cannot be set because it requires"
            " metadata.version >= 4.3-IV0",
        )


def _check_min_isr(
    image: MetadataImage,
    alteration: ConfigAlteration,
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> None:
    """Keep the cluster's one min.insync.replicas."""
    changed = before.keys() - after.keys()
    if alteration.resource_name:
        changed |= {change.name for change in alteration.changes}
    refusal = min_insync_replicas.find_refusal(image, alteration.resource_name, changed)
    if refusal is not None:
        raise _AlterationRefused(ErrorCode.invalid_config, refusal)


def _check_group(image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if not name:
        raise _build_invalid_error("Default group resources are not allowed.")
    try:
        values = configs.override(GROUP, image.resolve_group_config(""), {})
        values |= configs.parse(GROUP, after)
    except ConfigError as error:
        raise _AlterationRefused(ErrorCode.invalid_config, str(error)) from None
    reason = configs.find_bounds_violation(values, image.broker_config)
    reason = reason or _find_group_error(values)
    if reason is not None:
        raise _AlterationRefused(ErrorCode.invalid_config, reason)


def _find_group_error(values: Mapping[str, Any]) -> str | None:
    """Return why configs of a group contradict each other or are of no use, or None."""
    for kind in ("consumer", "share", "streams"):
        if values[f"{kind}.heartbeat.interval.ms"] >= values[f"{kind}.session.timeout.ms"]:
            return f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
    if values["errors.deadletterqueue.topic.name"].startswith("__"):
        return "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"
    return None


def _check_client_metrics(_image: MetadataImage, name: str, after: Mapping[str, str]) -> None:
    if not name:
        raise _build_invalid_error("Subscription name can't be empty")
    try:
        values = client_metrics.parse(after)
    except ConfigError as error:
        raise _build_invalid_error(str(error)) from None
    try:
        client_metrics.compile_patterns(values.get("match", ()))
    except ConfigError as error:
        raise _AlterationRefused(ErrorCode.invalid_config, str(error)) from None


_TABLES = {ConfigResourceType.TOPIC: TOPIC, ConfigResourceType.GROUP: GROUP}
_CHECKS = {
    ConfigResourceType.TOPIC: _check_topic,
    ConfigResourceType.BROKER: _check_broker,
    ConfigResourceType.GROUP: _check_group,
    ConfigResourceType.CLIENT_METRICS: _check_client_metrics,
}
