"""Admin calls on client quotas (KIP-546), reached as `Admin.quotas`.

A quota belongs to a user, a client id, both, or an IP address. Values are rates: bytes, mutations
or connections a second, or a percentage of the time of a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.client.errors import KafkaError, check
from shoal.client.net import message_fields
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.net.cluster import Cluster

USER, CLIENT_ID, IP = "user", "client-id", "ip"
#: The quotas of users and clients, and of addresses.
KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
IP_KEYS = ("connection_creation_rate",)
#: The types and names that a quota is for, sorted. The name None is the default for those without
#: a quota of their own.
Entity = tuple[tuple[str, str | None], ...]
_EXACT, _DEFAULT, _ANY = 0, 1, 2


class Quotas:
    """Calls on client quotas."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def describe(
        self, entity: Mapping[str, str | None] | None = None, *, any_of: str = ""
    ) -> dict[Entity, dict[str, float]]:
        """Return the quotas whose entities have these types and names.

        With `any_of`, an entity of this type may have any name. Without arguments: all quotas.
        Raises `KafkaError`.
        """
        components = [
            {
                "entity_type": kind,
                "match_type": _DEFAULT if name is None else _EXACT,
                "match": name,
            }
            for kind, name in (entity or {}).items()
        ]
        if any_of:
            components.append({"entity_type": any_of, "match_type": _ANY, "match": None})
        body = {"components": components, "strict": False}
        answer = await self.cluster.retry(
            lambda: self.cluster.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, body)
        )
        check(answer.error_code, answer.error_message or "describing quotas")
        quotas = {
            _parse_entity(result): {value.key: value.value for value in result.values}
            for result in answer.entries or ()
        }
        return dict(sorted(quotas.items(), key=lambda item: _get_sort_key(item[0])))

    async def alter(
        self, changes: Mapping[Entity, Mapping[str, float | None]]
    ) -> dict[Entity, KafkaError | None]:
        """Set quotas, or remove those whose value is None. Return the error of each entity."""
        body = {
            "entries": [
                {
                    "entity": [{"entity_type": k, "entity_name": n} for k, n in entity],
                    "ops": [
                        {"key": key, "value": value or 0.0, "remove": value is None}
                        for key, value in values.items()
                    ],
                }
                for entity, values in changes.items()
            ],
            "validate_only": False,
        }
        answer = await self.cluster.retry(
            lambda: self.cluster.ask(ApiKey.ALTER_CLIENT_QUOTAS, body)
        )
        return {
            _parse_entity(result): message_fields.parse_error(
                result, f"quotas of {format_entity(_parse_entity(result))}"
            )
            for result in answer.entries
        }


def make_user_entity(name: str) -> Entity:
    """Return the entity of one user."""
    return ((USER, name),)


def format_entity(entity: Entity) -> str:
    """Return an entity for people: `user ann, client-id <default>`."""
    return ", ".join(f"{kind} {'<default>' if n is None else n}" for kind, n in entity)


def _parse_entity(result: Any) -> Entity:
    return tuple(sorted((e.entity_type, e.entity_name) for e in result.entity))


def _get_sort_key(entity: Entity) -> list[tuple[str, str]]:
    return [(kind, name or "") for kind, name in entity]
