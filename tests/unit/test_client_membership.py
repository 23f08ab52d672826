"""The client's heartbeats: what is said after one whose answer did not come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from shoal.client.consumer import ConsumerMembership
from shoal.client.errors import ConnectionLost
from shoal.client.membership import Membership
from shoal.client.share import ShareMembership


class _Cluster:
    """Takes heartbeats; the answers of those that are to be lost are."""

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.lost = False

    async def coordinator(self, group: str) -> int:
        return 1

    async def request(self, node: int, key: int, body: Mapping[str, Any], *, lane: str) -> Any:
        self.bodies.append(body)
        if self.lost:
            raise ConnectionLost("the connection broke")
        return SimpleNamespace(
            error_code=0, error_message=None, member_epoch=1, member_id="m", assignment=None,
            heartbeat_interval=timedelta(seconds=5),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_heartbeat_after_one_without_an_answer_says_everything(kind: str) -> None:
    """Found by the simulation of clusters: the lost answer was the one with a new assignment, which
    a coordinator tells once, or to a member that says everything (KIP-848, KIP-932)."""

    async def main() -> list[bool]:
        cluster: Any = _Cluster()
        member: Membership = (
            ConsumerMembership(cluster, "g", ["t"])
            if kind == "consumer"
            else ShareMembership(cluster, "g", ["t"], None)
        )
        for lost in (False, False, True, False, False):
            cluster.lost = lost
            try:
                await member._beat()
            except ConnectionLost:
                assert lost
        if kind == "consumer":
            assert cluster.bodies[3]["rebalance_timeout_ms"] > 0
            assert cluster.bodies[3]["topic_partitions"] == []
        return [body["subscribed_topic_names"] is not None for body in cluster.bodies]

    assert asyncio.run(main()) == [True, False, False, True, False]
