"""Attackers of a broker's logins and TLS handshakes, without a login (`attack_catalogue`)."""

from __future__ import annotations

import contextlib
import ssl
import struct
from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from support.attacks.attackers import read_resident_mb, send_as_much_as_is_read
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from support.attacks.attackers import Target

#: The names of the listeners with logins and with TLS.
LOGINS, SECURED = "LOGINS", "SECURED"
#: What incomplete logins may take while they last, in megabytes: a sixteenth of
#: shoal.request.memory.bytes, and 8 KB of each.
HELD_LOGINS_MB = 16 + 14
#: Connections whose handshakes the broker has before it at once.
CROWD = 50


def make_up_tokens(target: Target) -> None:
    """SCRAM with ids of delegation tokens that nobody has."""
    for number in range(target.count(200)):
        with WireClient(target.logins, timeout_s=target.patience_s) as client:
            client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
            first = b"n,,n=made-up-%d,r=abc,tokenauth=true" % number
            client.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": first})


def hold_logins(target: Target) -> None:
    """Requests before a login that never arrive as a whole. Others still log in."""
    data = struct.pack(">i", 500_000) + bytes(499_999)
    before_mb = read_resident_mb(target)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(WireClient(target.logins)) for _ in range(400)]
        send_as_much_as_is_read([client.sock for client in clients], data)
        with WireClient(target.logins, timeout_s=target.patience_s) as client:
            client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
        more_mb = read_resident_mb(target) - before_mb
        is_bounded = more_mb < HELD_LOGINS_MB or not target.is_alone
        assert is_bounded, f"incomplete logins take {more_mb:.0f} MB"


def shake_hands(target: Target) -> None:
    """Handshakes of many clients at once, each with a new key, of which some end in the middle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello = make_hello(context)
    for _ in range(target.count(40)):
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(WireClient(target.secured)) for _ in range(CROWD)]
            for client in crowd:
                client.sock.sendall(hello)
            for client in crowd[::2]:
                client.sock.recv(1)
    with WireClient(target.secured, timeout_s=target.patience_s, tls=context) as client:
        client.call(ApiKey.API_VERSIONS, 0, {})


def make_hello(context: ssl.SSLContext) -> bytes:
    """Return the first message of a handshake, to which the server answers with its signature."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()
