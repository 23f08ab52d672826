"""Users of SCRAM, created as Kafka's admin client does."""

from __future__ import annotations

import hashlib

from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient

#: Mechanism numbers of the protocol, and their hashes.
MECHANISMS = {1: "sha256", 2: "sha512"}
SALT, ITERATIONS = b"1x4saltoftoolsofkafka0000", 4096


def add_scram_user(bootstrap: str, user: str, password: str) -> None:
    """Create the credentials of both mechanisms, each in a request of its own."""
    with WireClient(bootstrap) as client:
        for number, digest in MECHANISMS.items():
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, ITERATIONS)
            upsertion = {
                "name": user,
                "mechanism": number,
                "iterations": ITERATIONS,
                "salt": SALT,
                "salted_password": salted,
            }
            body = {"deletions": [], "upsertions": [upsertion]}
            found = client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
            assert [row.error_code for row in found.results] == [0], found
