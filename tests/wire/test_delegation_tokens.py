"""Delegation tokens of a broker. `compat/oracles/test_delegation_tokens.py` compares with Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.security.sasl_dialogue import Dialogue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "delegation.token.secret.key": "secret",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="a";'
    ),
}


def ask(address: str, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
    with Dialogue(address) as dialogue:
        dialogue.handshake()
        dialogue.plain("a", "a")
        return dialogue.call(api, version, body)


def tokens(address: str) -> set[str]:
    answer = ask(address, ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
    return {token.token_id for token in answer.tokens}


@pytest.mark.parametrize("interval_ms", ["50", None])
def test_expired_tokens_are_removed_at_an_interval(tmp_path: Path, interval_ms: str | None) -> None:
    """delegation.token.expiry.check.interval.ms: an hour by default. A restart changes nothing."""
    interval = {"delegation.token.expiry.check.interval.ms": interval_ms} if interval_ms else {}
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    broker = ShoalProcess(
        tmp_path / "data", configs=CONFIGS | interval, flags=(f"--listener=SASL://{address}",)
    ).start()
    of: dict[str, Any] = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
    }
    short, long = (
        ask(address, ApiKey.CREATE_DELEGATION_TOKEN, 3, of | {"max_lifetime_ms": lifetime_ms})
        for lifetime_ms in (1, 60_000)
    )
    if interval_ms is None:
        assert tokens(address) == {short.token_id, long.token_id}
    else:
        eventually(lambda: tokens(address) == {long.token_id}, what="the end of the token")
        # The line arrives through a pipe.
        expired = "a delegation token has expired"
        eventually(lambda: any(expired in line for line in broker.log), what=expired)
    before = tokens(address)
    assert broker.stop() == 0
    broker.bootstrap = "127.0.0.1:0"  # not the listener that it has named last
    broker.start()
    assert tokens(address) == before
    assert broker.stop() == 0
