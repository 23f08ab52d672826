"""The producers of this process, one for each cluster. All threads share them.

Django makes a backend for each thread, and a client has a thread and connections of its own. After
a fork, as of gunicorn's workers, the child has neither, so it makes new ones.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.client import SyncClient

if TYPE_CHECKING:
    from shoal.client.produce.producer import Producer
    from shoal.django.options import Options


class _Link(NamedTuple):
    client: SyncClient
    producer: Producer


_lock = threading.Lock()
#: By addresses and properties. `Settings` of equal files are not equal.
_links: dict[tuple[str, tuple[tuple[str, str], ...]], _Link] = {}


def send(options: Options, topic: str, record: dict[str, Any], timeout_s: float) -> None:
    """Store a record; return once it is stored. Raises `KafkaError`, or `TimeoutError` if it may
    be stored later."""
    link = _connect(options)

    async def store() -> None:
        await (await link.producer.send(topic, **record))

    link.client.run(store(), timeout_s)


def _connect(options: Options) -> _Link:
    name = options.bootstrap_servers, tuple(sorted(options.client.items()))
    with _lock:
        link = _links.get(name)
        if link is None:
            client = SyncClient(options.read_client())
            link = _links[name] = _Link(client, client.run(_make_producer(client)))
        return link


async def _make_producer(client: SyncClient) -> Producer:
    return client.client.producer()


def close() -> None:
    """Disconnect from all clusters. The next task connects again."""
    with _lock:
        for link in _links.values():
            link.client.run(link.producer.close())
            link.client.close()
        _links.clear()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _links.clear()


os.register_at_fork(after_in_child=_forget)
