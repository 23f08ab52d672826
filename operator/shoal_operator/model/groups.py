"""A ShareGroup's spec as the group configs of Kafka (KIP-932, KIP-1240)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal_operator import group_metrics
from shoal_operator.quantities import duration_ms, iso_duration

_RESET = {"Latest": "latest", "Earliest": "earliest"}
_ISOLATION = {"ReadUncommitted": "read_uncommitted", "ReadCommitted": "read_committed"}


def group_id(resource: Mapping[str, Any]) -> str:
    return resource["spec"].get("groupId") or resource["metadata"]["name"]


def config(spec: Mapping[str, Any]) -> dict[str, str]:
    """Group configs by name; what the spec leaves empty is left to the broker."""
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
    return made | group_metrics.config(spec)


def _start(spec: Mapping[str, Any]) -> str:
    if spec["startOffset"] == "ByDuration":
        return f"by_duration:{iso_duration(duration_ms(spec['startOffsetDuration']))}"
    return _RESET[spec["startOffset"]]
