"""Commands that Apache Kafka's brokers cannot serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.session import Failed

if TYPE_CHECKING:
    from shoal.client.client import Client


async def require(client: Client, what: str) -> None:
    """Raise `Failed` if the cluster is not Shoal's; `what` is what only Shoal has."""
    link = await client.cluster.any_connection()
    if not any(name.startswith("shoal.") for name in link.features):
        raise Failed(f"this cluster is Apache Kafka: it has no {what}.")
