"""Commands that Apache Kafka's brokers cannot serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.session import CommandError

if TYPE_CHECKING:
    from shoal.client.client import Client


async def require(client: Client, feature: str) -> None:
    """Raise `CommandError` if the cluster is not Shoal's; `feature` is what only Shoal has."""
    link = await client.cluster.get_any_connection()
    if not any(name.startswith("shoal.") for name in link.features):
        raise CommandError(f"this cluster is Apache Kafka: it has no {feature}.")
