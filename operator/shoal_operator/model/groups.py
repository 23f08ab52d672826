"""A ShareGroup's spec as group configs (KIP-932, KIP-1240)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal_operator.model import field_defaults
from shoal_operator.model.quantities import format_iso_duration, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shoal_operator.model.resources.share_group import ShareGroup, ShareGroupSpec

ORDERING = "share.ordering"
#: The config of a topic that takes dead letters.
DEAD_LETTERS_ENABLED = "errors.deadletterqueue.group.enable"
_RESET = {"Latest": "latest", "Earliest": "earliest"}
_ISOLATION = {"ReadUncommitted": "read_uncommitted", "ReadCommitted": "read_committed"}


def get_group_id(resource: ShareGroup) -> str:
    """Return the id of the group in the brokers."""
    return resource["spec"].get("groupId") or str(resource["metadata"]["name"])


def build_config(spec: ShareGroupSpec) -> dict[str, str]:
    """Return group configs by name. Where the spec is empty, the broker's default applies."""
    configs = {
        "share.record.lock.duration.ms": str(parse_duration_ms(spec["lockDuration"])),
        "share.delivery.count.limit": str(spec["deliveryLimit"]),
        "share.partition.max.record.locks": str(spec["maxRecordLocks"]),
        "share.auto.offset.reset": _format_start(spec),
        "share.isolation.level": _ISOLATION[spec["isolation"]],
        "share.renew.acknowledge.enable": str(spec["renewal"]).lower(),
    }
    if spec.get("sessionTimeout"):
        configs["share.session.timeout.ms"] = str(parse_duration_ms(spec["sessionTimeout"]))
    if spec.get("heartbeatInterval"):
        configs["share.heartbeat.interval.ms"] = str(parse_duration_ms(spec["heartbeatInterval"]))
    return configs | _build_shoal_config(spec)


def _format_start(spec: ShareGroupSpec) -> str:
    if spec["startOffset"] == "ByDuration":
        return f"by_duration:{format_iso_duration(parse_duration_ms(spec['startOffsetDuration']))}"
    return _RESET[spec["startOffset"]]


def _build_shoal_config(spec: ShareGroupSpec) -> dict[str, str]:
    """Return the group configs that Apache Kafka 4.3 does not have."""
    configs = {}
    if spec.get("pauseDelivery"):
        configs["share.delivery.paused"] = "true"
    if spec.get("ordering", "none") != "none":
        configs[ORDERING] = spec["ordering"]
    if "keyOrder" in spec:
        order = field_defaults.fill(spec["keyOrder"], field_defaults.KEY_ORDER)
        prefix = "share.ordering.key."
        configs[f"{prefix}batch"] = str(order["batch"])
        configs[f"{prefix}dead.letter"] = order["deadLetter"].lower()
        configs[f"{prefix}dead.letter.max.held"] = str(order["maxHeld"])
    if delay := spec.get("delay"):
        configs["share.delay.max.ms"] = str(parse_duration_ms(delay["max"]))
        configs["share.delay.max.records"] = str(delay["maxRecords"])
    if priority := spec.get("priority"):
        configs["share.priority.header"] = priority["header"]
        configs["share.priority.ageing.ms"] = str(parse_duration_ms(priority["ageing"]))
    configs |= _build_tenant_config(spec)
    if backoff := spec.get("redeliveryBackoff"):
        prefix = "share.redelivery.backoff."
        configs[f"{prefix}ms"] = str(parse_duration_ms(backoff["initial"]))
        configs[f"{prefix}max.ms"] = str(parse_duration_ms(backoff["max"]))
        configs[f"{prefix}multiplier"] = str(float(backoff["multiplier"]))
        configs[f"{prefix}jitter"] = str(backoff["jitterPercent"] / 100)
    if dead_letters := spec.get("deadLetters"):
        prefix = "errors.deadletterqueue."
        configs[f"{prefix}topic.name"] = dead_letters["topic"]
        configs[f"{prefix}copy.record.enable"] = str(dead_letters["copyRecords"]).lower()
        if dead_letters.get("dropAfter"):
            configs[f"shoal.{prefix}drop.after.ms"] = str(
                parse_duration_ms(dead_letters["dropAfter"])
            )
        if dead_letters.get("floodPerMinute"):
            configs[f"shoal.{prefix}flood.per.minute"] = str(dead_letters["floodPerMinute"])
    return configs


def _build_tenant_config(spec: ShareGroupSpec) -> dict[str, str]:
    """Return the group configs that divide the consumers among tenants."""
    configs = {}
    if fairness := spec.get("fairness"):
        prefix = "share.fairness."
        by_header = fairness["by"] == "Header"
        configs[f"{prefix}by"] = f"header:{fairness['header']}" if by_header else "key"
        configs[f"{prefix}lookahead.records"] = str(fairness["lookaheadRecords"])
        if weights := fairness.get("weights"):
            configs[f"{prefix}weights"] = _format_by_tenant(weights)
    limits, prefix = spec.get("limits", {}), "share.tenant."
    if in_flight := limits.get("maxInFlight"):
        configs[f"{prefix}max.in.flight"] = str(in_flight)
    if in_flight_overrides := limits.get("maxInFlightOverrides"):
        configs[f"{prefix}max.in.flight.overrides"] = _format_by_tenant(in_flight_overrides)
    if rate := limits.get("maxPerSecond"):
        # The brokers show a rate as a fraction.
        configs[f"{prefix}max.per.second"] = str(float(rate))
    if rate_overrides := limits.get("maxPerSecondOverrides"):
        configs[f"{prefix}max.per.second.overrides"] = _format_by_tenant(rate_overrides)
    if limits.get("burst"):
        configs[f"{prefix}max.per.second.burst"] = str(limits["burst"])
    if limits.get("pausedTenants"):
        configs[f"{prefix}paused"] = ",".join(limits["pausedTenants"])
    return configs


def _format_by_tenant(numbers: Mapping[str, int | str]) -> str:
    """Format numbers of tenants as a config. Their order in a manifest is no change."""
    return ",".join(f"{name}:{number}" for name, number in sorted(numbers.items()))


#: The fields of a ShareGroup, by the beginning of the names of their configs. The first one counts.
_FIELDS = (
    ("share.record.lock.duration.ms", "lockDuration"),
    ("share.delivery.count.limit", "deliveryLimit"),
    ("share.partition.max.record.locks", "maxRecordLocks"),
    ("share.auto.offset.reset", "startOffset"),
    ("share.isolation.level", "isolation"),
    ("share.renew.acknowledge.enable", "renewal"),
    ("share.session.timeout.ms", "sessionTimeout"),
    ("share.heartbeat.interval.ms", "heartbeatInterval"),
    ("share.delivery.paused", "pauseDelivery"),
    ("share.ordering.key.", "keyOrder"),
    (ORDERING, "ordering"),
    ("share.delay.", "delay"),
    ("share.priority.", "priority"),
    ("share.fairness.by", "fairness"),
    ("share.fairness.weights", "fairness.weights"),
    ("share.fairness.lookahead.records", "fairness.lookaheadRecords"),
    ("share.tenant.max.in.flight.overrides", "limits.maxInFlightOverrides"),
    ("share.tenant.max.in.flight", "limits.maxInFlight"),
    ("share.tenant.max.per.second.overrides", "limits.maxPerSecondOverrides"),
    ("share.tenant.max.per.second.burst", "limits.burst"),
    ("share.tenant.max.per.second", "limits.maxPerSecond"),
    ("share.tenant.paused", "limits.pausedTenants"),
    ("share.redelivery.backoff.", "redeliveryBackoff"),
    ("shoal.errors.deadletterqueue.drop.after.ms", "deadLetters.dropAfter"),
    ("shoal.errors.deadletterqueue.flood.per.minute", "deadLetters.floodPerMinute"),
    ("errors.deadletterqueue.", "deadLetters"),
)
#: The schema's defaults that are Kafka's own, too: brokers without the config behave like this.
_KAFKAS_DEFAULTS = {
    "share.delivery.count.limit": "5",
    "share.partition.max.record.locks": "2000",
    "share.renew.acknowledge.enable": "true",
    "share.isolation.level": "read_uncommitted",
}


def get_field(config_name: str) -> str:
    """Return the field of a ShareGroup that sets a group config."""
    return next(field for prefix, field in _FIELDS if config_name.startswith(prefix))


def split_supported(
    spec: ShareGroupSpec, known_configs: Collection[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the group configs for brokers that have the `known_configs` ones, and by field the
    configs that these brokers lack."""
    configs, lacking = build_config(spec), dict[str, list[str]]()
    for name, value in configs.items():
        if name not in known_configs and _KAFKAS_DEFAULTS.get(name) != value:
            lacking.setdefault(get_field(name), []).append(name)
    return {name: value for name, value in configs.items() if name in known_configs}, lacking


class NewDeadLetterTopic(NamedTuple):
    """A dead-letter topic to create, with the brokers' default of replicas if that is 0."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str]


def build_dead_letter_topic(spec: ShareGroupSpec) -> NewDeadLetterTopic | None:
    """Return the dead-letter topic to create, if any."""
    dead_letters = spec.get("deadLetters")
    if not dead_letters or "create" not in dead_letters:
        return None
    creation = field_defaults.fill(dead_letters["create"], field_defaults.DEAD_LETTER_TOPIC)
    configs = {DEAD_LETTERS_ENABLED: "true"}
    if creation.get("retention"):
        configs["retention.ms"] = str(parse_duration_ms(creation["retention"]))
    replicas = creation.get("replicas", 0)
    return NewDeadLetterTopic(dead_letters["topic"], creation["partitions"], replicas, configs)
