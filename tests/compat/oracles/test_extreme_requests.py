"""Kafka closes the connection for a null where its schema has none, and for no other extreme value.

`tests/wire/test_extreme_requests.py` holds Shoal to that. APIs among nodes have another listener in
Kafka, and a null in Shoal's own tags is none of Kafka's fields.
"""

from __future__ import annotations

import selectors
import socket
from typing import TYPE_CHECKING

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.extensions import OWN_FIELDS
from shoal.server.handlers import HANDLERS
from support.attacks.extreme_requests import Extreme, extremes, make_topic
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.shared_servers import SharedKafka

pytestmark = [pytest.mark.java, pytest.mark.nightly]

#: An own Kafka, which the requests change.
CONFIGS = {"share.coordinator.state.topic.num.partitions": "1"}
BATCH = 100
#: Kafka leaves some requests without a response, such as a change of quotas it cannot apply.
SILENCE_S = 2.0
_OWN_FIELDS = {field.name for fields in OWN_FIELDS.values() for field in fields}


def test_kafka_closes_for_the_same(get_kafka: Callable[..., SharedKafka]) -> None:
    """Thousands of requests, and some seconds of silence, take a minute."""
    kafka = get_kafka(CONFIGS)
    with WireClient(kafka.bootstrap) as client:
        listed = client.call(ApiKey.API_VERSIONS, 0, {}).api_keys
        topic_id = make_topic(client)
    served = {row.api_key: range(row.min_version, row.max_version + 1) for row in listed}
    cases = [
        extreme
        for key in sorted(HANDLERS.keys() & served.keys())
        for version in {*_ends(HANDLERS[key].versions, served[key])}
        for extreme in extremes(ApiKey(key), version, topic_id)
        if not _OWN_FIELDS & set(extreme.path)
    ]
    closed = {
        extreme.what
        for at in range(0, len(cases), BATCH)
        for extreme in _closing(kafka.bootstrap, cases[at : at + BATCH])
    }
    assert closed == {extreme.what for extreme in cases if extreme.is_null}


def _ends(ours: range, theirs: range) -> tuple[int, int]:
    """Return the first and the last version that both have."""
    return max(ours.start, theirs.start), min(ours.stop, theirs.stop) - 1


def _closing(bootstrap: str, batch: list[Extreme]) -> Iterator[Extreme]:
    """Send each request on a connection of its own. Yield those whose connection is closed."""
    host, port = bootstrap.rsplit(":", 1)
    with selectors.DefaultSelector() as selector:
        for extreme in batch:
            sock = socket.create_connection((host, int(port)))
            sock.sendall(extreme.frame)
            selector.register(sock, selectors.EVENT_READ, extreme)
        while selector.get_map():
            ready = selector.select(SILENCE_S)
            for key in [key for key, _ in ready] or list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                if ready and not _receive(key.fileobj):
                    yield key.data
                selector.unregister(key.fileobj)
                key.fileobj.close()


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionResetError:
        return b""
