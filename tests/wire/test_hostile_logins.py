"""Clients that never log in, and a provider of keys that is down: others are served as before."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import ceiling
from support.security.sasl_dialogue import Dialogue
from unit.security.test_jwt_tokens import token
from wire.test_tls_listeners import Secured, trusting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HALF_OPEN = 2_000
#: Long enough for all of them to connect, and for the client beside them.
HANDSHAKE_MS = 5_000
#: The time of the client beside them, and the memory of each of them.
AT_ONCE_S, EACH_KB = 1.0, 64
MODULE = "org.apache.kafka.common.security"


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Let this process and its children have as many connections as the system permits."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def client_hello() -> bytes:
    """Return the first message of a handshake."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting().wrap_bio(to_client, to_server, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()


@pytest.mark.nightly
def test_thousands_of_half_open_handshakes(tmp_path: Path) -> None:
    """Each ends at its deadline. A client beside them is served at once."""
    hello = client_hello()
    secured = Secured(tmp_path)
    host, _, port = secured.address.rpartition(":")
    configs = secured.pem() | {"shoal.ssl.handshake.timeout.ms": str(HANDSHAKE_MS)}
    with many_files(), contextlib.ExitStack() as stack:
        broker = secured.prepare(configs)
        stack.callback(broker.kill9)
        broker.start()
        with secured.connect():
            before = broker.resident_mb()
        clients = []
        for _ in range(HALF_OPEN):
            one = stack.enter_context(socket.create_connection((host, int(port)), 60))
            one.sendall(hello[: len(hello) // 2])
            clients.append(one)
        began = time.monotonic()
        with secured.connect():
            took_s = time.monotonic() - began
        grown_kb = 1000 * (broker.resident_mb() - before) / HALF_OPEN
        assert {one.recv(1) for one in clients} == {b""}
        assert took_s < ceiling(AT_ONCE_S)
        assert grown_kb < EACH_KB
        assert len(secured.failures("within shoal.ssl.handshake.timeout.ms")) > 0
        with secured.connect():
            pass


def test_a_provider_of_keys_that_is_down_stops_nobody_else(tmp_path: Path) -> None:
    """The broker starts, the other listener serves, and a bearer token gets an answer."""
    nowhere, bearers, users = (f"127.0.0.1:{port}" for port in free_ports(3))
    keys = f"http://{nowhere}/keys"
    broker = ShoalProcess(
        tmp_path,
        configs={
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,BEARERS:SASL_PLAINTEXT,USERS:SASL_PLAINTEXT"
            ),
            "listener.name.bearers.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": (
                f'{MODULE}.plain.PlainLoginModule required user_alice="secret";'
            ),
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "shoal.oauthbearer.allowed.urls": keys,
        },
        flags=[f"--listener=BEARERS://{bearers}", f"--listener=USERS://{users}"],
    )
    broker.start()
    try:
        with Dialogue(users) as dialogue:
            dialogue.handshake("PLAIN")
            dialogue.plain("alice", "secret")
            assert dialogue.notes[-1][0] == "none", dialogue.notes
        now_s = int(time.time())
        bearer = token(iat=now_s, exp=now_s + 60)
        with Dialogue(bearers) as dialogue:
            dialogue.handshake("OAUTHBEARER")
            answer = dialogue.token(f"n,,\x01auth=Bearer {bearer}\x01\x01".encode())
            assert b"invalid_token" in answer
        assert broker.stop() == 0
    finally:
        broker.kill9()
