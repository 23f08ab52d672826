"""Our client against Apache Kafka: TLS, every SASL mechanism, and sessions that end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import secured_kafkas
from identity_providers import IdentityProvider
from secured_kafkas import MECHANISMS, PASSWORDS, SecuredKafka
from shoal.client.client import Client
from shoal.client.errors import SecurityError
from shoal.client.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with IdentityProvider(PASSWORDS) as provider:
        found = secured_kafkas.start(tmp_path_factory.mktemp("secured"), provider)
        yield found
        found.kafka.kill9()


def cluster_id(address: str, properties: dict[str, str]) -> str:
    async def ask() -> str:
        async with Client(Settings.of(address, properties)) as client:
            return (await client.admin.describe_cluster()).cluster_id

    return asyncio.run(ask())


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl(secured: SecuredKafka, listener: str, mechanism: str) -> None:
    address = secured.kafka.addresses[listener]
    for user in PASSWORDS:
        assert cluster_id(address, secured.properties(listener, mechanism, user))
    wrong = secured.properties(listener, mechanism)
    wrong = {n: v if v != PASSWORDS["admin"] else "wrong" for n, v in wrong.items()}
    with pytest.raises(SecurityError, match="refuses"):
        cluster_id(address, wrong)
