"""Requests to coordinators that `shoal.client` does not offer, for clients of simulated
clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.client.errors import STALE_COORDINATOR, ClientError, KafkaError
from shoal.client.net.cluster import GROUP, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.protocol.api import ApiKey


def _code(answer: Any) -> int:
    code: int = answer.error_code
    return code


async def ask_coordinator(
    cluster: Cluster,
    name: str,
    key: ApiKey,
    body: Mapping[str, Any],
    version: int | None = None,
    *,
    kind: int = GROUP,
    code: Callable[[Any], int] = _code,
    lane: str = "coordinator",
    timeout_ms: int | None = None,
) -> Any:
    """Ask the coordinator of a group or transactional id once, in at most this version. Raises
    `KafkaError` for the error that `code` finds in the response."""
    node = await cluster.find_coordinator(name, kind)
    try:
        link = await cluster.get_connection(node, lane)
        answer = await link.request(
            key, body, version=link.choose_version(key, version), timeout_ms=timeout_ms
        )
    except ClientError:
        cluster.forget_coordinator(name, kind)
        raise
    if error := code(answer):
        if error in STALE_COORDINATOR:
            cluster.forget_coordinator(name, kind)
        raise KafkaError(error, f"{key.name} of {name}")
    return answer
