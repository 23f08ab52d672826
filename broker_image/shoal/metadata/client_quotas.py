"""Client quotas (KIP-13, KIP-55, KIP-546, KIP-599, KIP-612): entities, changes and listings.

A quota's entity is a user, a client id, both, or an address. Each may be the default for those
without their own quota. An entity is a tuple of sorted (type, name) pairs; the name None is the
default. Values are rates: bytes, mutations or connections per second, or a percentage.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata.controller import ControllerResult
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
#: Keys of users and client ids, and of addresses: the maximum if the value must be a whole number,
#: else None.
_KEYS: Mapping[str, float | None] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Mapping[str, float | None] = {CONNECTION_CREATION_RATE: 2**31 - 1}

#: (type, name) pairs, sorted; at most one of each type.
Entity = tuple[tuple[str, str | None], ...]
Quotas = Mapping[Entity, Mapping[str, float]]


class QuotaChange(NamedTuple):
    """New quotas of one entity: (key, value) pairs; None removes the quota."""

    entity: Sequence[tuple[str, str | None]]
    values: Sequence[tuple[str, float | None]]


#: Match types of DescribeClientQuotas.
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


class QuotaFilterComponent(NamedTuple):
    """A part of a filter: entity type, match type, and the name of an exact match."""

    entity_type: str
    match_type: int
    match: str | None


def alter(
    image: MetadataImage, changes: Sequence[QuotaChange], *, validate_only: bool = False
) -> ControllerResult:
    """Set and remove quotas, each entity's independently.

    The response is (error code, message) for each change, in order.
    """
    records: list[MetadataRecord] = []
    outcomes: list[tuple[ErrorCode, str | None]] = []
    seen_entities: set[Entity] = set()
    for change in changes:
        entity: Entity = tuple(sorted(change.entity, key=lambda pair: pair[0]))
        refusal = _find_entity_error(entity) or _find_values_error(entity, change.values)
        if entity in seen_entities:
            refusal = "The entity is named twice in the request."
        seen_entities.add(entity)
        if refusal is None:
            records += _build_records(image.client_quotas.get(entity, {}), entity, change.values)
            outcomes.append((ErrorCode.none, None))
        else:
            outcomes.append((ErrorCode.invalid_request, refusal))
    return ControllerResult([] if validate_only else records, outcomes)


def _find_entity_error(entity: Entity) -> str | None:
    types = [kind for kind, _ in entity]
    if not types:
        return "A quota needs an entity: a user, a client-id, both, or an ip."
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind}."
        if name == "":
            return f"Empty {kind} not supported."
    if len(set(types)) < len(types):
        return "A type is listed twice in the entity."
    if IP in types:
        if len(types) > 1:
            return "An ip cannot be combined with a user or a client-id."
        name = entity[0][1]
        if name is not None and not _is_address(name):
            return f"{name} is not an IP address."
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _find_values_error(entity: Entity, values: Sequence[tuple[str, float | None]]) -> str | None:
    valid = _IP_KEYS if entity[0][0] == IP else _KEYS
    seen_keys: set[str] = set()
    for key, value in values:
        if key in seen_keys:
            return f"Duplicate quota key {key}."
        seen_keys.add(key)
        if value is None:
            continue
        if key not in valid:
            return f"Invalid configuration key {key}: there are {', '.join(valid)}."
        if not value > 0:
            return f"Quota {key} must be greater than 0."
        greatest = valid[key]
        if greatest is not None:
            if value > greatest:
                return f"The value of {key} is above {greatest}."
            if abs(value % 1.0) > 1e-6:
                return f"{key} cannot be a fractional value."
    return None


def _build_records(
    now: Mapping[str, float], entity: Entity, values: Sequence[tuple[str, float | None]]
) -> Iterator[MetadataRecord]:
    """Yield the records of the changes."""
    fields = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    for key, value in values:
        if value is None:
            if key in now:
                yield MetadataRecord(
                    "ClientQuotaRecord", {"entity": fields, "key": key, "remove": True}
                )
        elif now.get(key) != value:
            yield MetadataRecord(
                "ClientQuotaRecord", {"entity": fields, "key": key, "value": value}
            )


def describe(
    quotas: Quotas, components: Iterable[QuotaFilterComponent], *, strict: bool
) -> list[tuple[Entity, Mapping[str, float]]]:
    """Return the entities that match every component; with `strict` they have no other type.

    Raises `ApiError`.
    """
    by_type: dict[str, QuotaFilterComponent] = {}
    for component in components:
        _check_component(component, by_type)
        by_type[component.entity_type] = component
    if IP in by_type and len(by_type) > 1:
        raise ApiError(
            ErrorCode.invalid_request, "An ip cannot be asked for with a user or a client-id."
        )
    return [
        (entity, values)
        for entity, values in sorted(quotas.items(), key=lambda item: str(item[0]))
        if _has_match(dict(entity), by_type, strict=strict)
    ]


def _check_component(
    component: QuotaFilterComponent, by_type: Mapping[str, QuotaFilterComponent]
) -> None:
    kind, match_type, match = component
    if not kind:
        raise ApiError(ErrorCode.invalid_request, "Invalid empty entity type.")
    if kind in by_type:
        raise ApiError(ErrorCode.invalid_request, f"{kind} is listed twice in the filter.")
    if kind not in (USER, CLIENT_ID, IP):
        raise ApiError(ErrorCode.unsupported_version, f"Unsupported entity type {kind}.")
    if match_type not in (EXACT, DEFAULT, SPECIFIED):
        raise ApiError(ErrorCode.invalid_request, f"Unknown match type {match_type}.")
    if (match is None) == (match_type == EXACT):
        raise ApiError(
            ErrorCode.invalid_request, "An exact match needs a name, and no other match has one."
        )


def _has_match(
    entity: Mapping[str, str | None], by_type: Mapping[str, QuotaFilterComponent], *, strict: bool
) -> bool:
    if strict and len(entity) != len(by_type):
        return False
    return all(
        kind in entity and (c.match_type == SPECIFIED or entity[kind] == c.match)
        for kind, c in by_type.items()
    )


class QuotaMatch(NamedTuple):
    """The quota of a client: its limit and the (user, client id) that share it. An empty name means
    that the quota does not depend on it.
    """

    limit: float
    sharers: tuple[str, str]


def find_quota(quotas: Quotas, key: str, user: str, client_id: str) -> QuotaMatch | None:
    """Return the most specific quota of a client for this key, or None."""
    for entity, sharers in (
        (((CLIENT_ID, client_id), (USER, user)), (user, client_id)),
        (((CLIENT_ID, None), (USER, user)), (user, client_id)),
        (((USER, user),), (user, "")),
        (((CLIENT_ID, client_id), (USER, None)), (user, client_id)),
        (((CLIENT_ID, None), (USER, None)), (user, client_id)),
        (((USER, None),), (user, "")),
        (((CLIENT_ID, client_id),), ("", client_id)),
        (((CLIENT_ID, None),), ("", client_id)),
    ):
        limit = quotas.get(entity, {}).get(key)
        if limit is not None:
            return QuotaMatch(limit, sharers)
    return None


def find_connection_rate(quotas: Quotas, host: str) -> float | None:
    """Return the limit of connections per second from an address, or None."""
    for name in (host, None):
        limit = quotas.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
        if limit is not None:
            return limit
    return None
