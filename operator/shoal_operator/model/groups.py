"""A ShareGroup's spec as group configs (KIP-932, KIP-1240)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.quantities import duration_ms, iso_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ORDERING = "share.ordering"
#: The config of a topic that takes dead letters.
DEAD_LETTERS_ENABLED = "errors.deadletterqueue.group.enable"
_RESET = {"Latest": "latest", "Earliest": "earliest"}
_ISOLATION = {"ReadUncommitted": "read_uncommitted", "ReadCommitted": "read_committed"}


def group_id(resource: Mapping[str, Any]) -> str:
    """Return the id of the group in the brokers."""
    return str(resource["spec"].get("groupId") or resource["metadata"]["name"])


def config(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return group configs by name. Where the spec is empty, the broker's default applies."""
    made = {
        "share.record.lock.duration.ms": str(duration_ms(spec["lockDuration"])),
        "share.delivery.count.limit": str(spec["deliveryLimit"]),
        "share.partition.max.record.locks": str(spec["maxRecordLocks"]),
        "share.auto.offset.reset": _start(spec),
        "share.isolation.level": _ISOLATION[spec["isolation"]],
        "share.renew.acknowledge.enable": str(spec["renewal"]).lower(),
    }
    if spec.get("sessionTimeout"):
        made["share.session.timeout.ms"] = str(duration_ms(spec["sessionTimeout"]))
    if spec.get("heartbeatInterval"):
        made["share.heartbeat.interval.ms"] = str(duration_ms(spec["heartbeatInterval"]))
    return made | _shoal_config(spec)


def _start(spec: Mapping[str, Any]) -> str:
    if spec["startOffset"] == "ByDuration":
        return f"by_duration:{iso_duration(duration_ms(spec['startOffsetDuration']))}"
    return _RESET[spec["startOffset"]]


def _shoal_config(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the group configs that Apache Kafka 4.3 does not have."""
    made = {}
    if spec.get("pauseDelivery"):
        made["share.delivery.paused"] = "true"
    if spec.get("ordering", "none") != "none":
        made[ORDERING] = spec["ordering"]
    if order := spec.get("keyOrder"):
        prefix = "share.ordering.key."
        made[f"{prefix}batch"] = str(order["batch"])
        made[f"{prefix}dead.letter"] = order["deadLetter"].lower()
        made[f"{prefix}dead.letter.max.held"] = str(order["maxHeld"])
    if delay := spec.get("delay"):
        made["share.delay.max.ms"] = str(duration_ms(delay["max"]))
        made["share.delay.max.records"] = str(delay["maxRecords"])
    if priority := spec.get("priority"):
        made["share.priority.header"] = priority["header"]
        made["share.priority.ageing.ms"] = str(duration_ms(priority["ageing"]))
    if backoff := spec.get("redeliveryBackoff"):
        prefix = "share.redelivery.backoff."
        made[f"{prefix}ms"] = str(duration_ms(backoff["initial"]))
        made[f"{prefix}max.ms"] = str(duration_ms(backoff["max"]))
        made[f"{prefix}multiplier"] = str(float(backoff["multiplier"]))
        made[f"{prefix}jitter"] = str(backoff["jitterPercent"] / 100)
    if dead_letters := spec.get("deadLetters"):
        prefix = "errors.deadletterqueue."
        made[f"{prefix}topic.name"] = dead_letters["topic"]
        made[f"{prefix}copy.record.enable"] = str(dead_letters["copyRecords"]).lower()
        if dead_letters.get("dropAfter"):
            made[f"shoal.{prefix}drop.after.ms"] = str(duration_ms(dead_letters["dropAfter"]))
        if dead_letters.get("floodPerMinute"):
            made[f"shoal.{prefix}flood.per.minute"] = str(dead_letters["floodPerMinute"])
    return made


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


def field_of(config_name: str) -> str:
    """Return the field of a ShareGroup that sets a group config."""
    return next(field for prefix, field in _FIELDS if config_name.startswith(prefix))


def supported(
    spec: Mapping[str, Any], known: Collection[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the group configs for brokers that have the `known` ones, and by field the configs
    that these brokers lack."""
    given, lacking = config(spec), dict[str, list[str]]()
    for name, value in given.items():
        if name not in known and _KAFKAS_DEFAULTS.get(name) != value:
            lacking.setdefault(field_of(name), []).append(name)
    return {name: value for name, value in given.items() if name in known}, lacking


def dead_letter_topic(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the QueueTopic spec of the dead-letter topic to create, if any."""
    dead_letters = spec.get("deadLetters")
    if not dead_letters or "create" not in dead_letters:
        return None
    wanted = dead_letters["create"]
    settings = {DEAD_LETTERS_ENABLED: "true"}
    if wanted.get("retention"):
        settings["retention.ms"] = str(duration_ms(wanted["retention"]))
    topic = {"partitions": wanted["partitions"], "config": settings}
    if wanted.get("replicas"):
        topic["replicas"] = wanted["replicas"]
    return dead_letters["topic"], topic
