"""Permissions of ListTransactions, in a broker without sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvloop
from shoal.metadata.patterns import compile_pattern
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.security.acls import Operation, ResourceType
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.handlers.transactions import list_transactions
from shoal.server.process import compose
from support.brokers.connections import Wire
from support.runs.conditions import eventually_async
from support.security import permissions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

OWNER, STRANGER = "10.0.0.1", "10.0.0.2"
CONFIGS = {
    **permissions.CONFIGS,
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "transaction.state.log.num.partitions": "1",
}
#: Only the owner may do something with the transaction.
ACL = permissions.entry(OWNER, Operation.ALL, ResourceType.TRANSACTIONAL_ID, "theirs")


async def call(wire: Wire, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
    before = len(wire.written)
    wire.send(api, version, body)
    await eventually_async(lambda: len(wire.written) > before)
    frame = wire.written[-1][4:]
    return codec.read_response(
        api, version, frame, len(frames.build_response_head(api, version, 1))
    )


def test_a_pattern_meets_only_what_the_user_may_describe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time of an answer would tell which ids of others a pattern matches."""
    compared: list[str] = []

    class Noted:
        def __init__(self, text: str) -> None:
            self._pattern = compile_pattern(text)

        def fullmatch(self, text: str) -> object:
            compared.append(text)
            return self._pattern.fullmatch(text)

    monkeypatch.setattr(list_transactions, "compile_pattern", Noted)

    async def main() -> None:
        configs = {**CONFIGS, "log.dirs": str(tmp_path)}
        broker = compose(resolve(configs, {}), asyncio.get_running_loop())
        await broker.start()
        try:
            owner, stranger = (
                Wire(broker.listeners[0], broker.dispatch, host) for host in (OWNER, STRANGER)
            )
            await call(owner, ApiKey.CREATE_ACLS, 3, permissions.creations([ACL]))
            begin = {"transactional_id": "theirs", "transaction_timeout_ms": 60_000}

            async def begin_fails() -> bool:
                return bool((await call(owner, ApiKey.INIT_PRODUCER_ID, 4, begin)).error_code)

            while await begin_fails():  # The coordinator's topic is created and loaded.
                await asyncio.sleep(0)

            async def list_ids(wire: Wire) -> list[str]:
                filters = {"transactional_id_pattern": "their.*"}
                answer = await call(wire, ApiKey.LIST_TRANSACTIONS, 2, filters)
                return [row.transactional_id for row in answer.transaction_states]

            assert await list_ids(stranger) == []
            assert compared == []
            assert await list_ids(owner) == compared == ["theirs"]
        finally:
            await broker.stop()

    logs.configure(json=True, level="critical")
    uvloop.run(main())
