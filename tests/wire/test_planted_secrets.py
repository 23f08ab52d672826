"""Planted secrets appear in no log line, traceback, dump or description of configs.

The broker logs everything (`--log-level=debug`). It meets good and bad logins, changes of secrets,
and a bug of its own while it handles a password.
"""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.commands import Shoal
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.security.certificates import Authority, Stores
from support.security.sasl_dialogue import Dialogue
from support.security.scram_users import add_scram_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AUTHORITY = Authority()
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
JAAS = "listener.name.sasl.plain.sasl.jaas.config"
KEY_PASSWORD = "listener.name.ssl.ssl.key.password"
#: What each secret is for. A wrong password may be the right one of another system.
SECRETS = {
    use: f"pl4nted-{use}-5ecret"
    for use in (
        "plain",
        "scram",
        "scram-of-request",
        "wrong",
        "bug",
        "unknown-user",
        "key-password",
        "wrong-key-password",
        "token-key",
        "metrics-token",
        "bearer",
    )
}
#: The user whose login meets a bug, and a request with a secret that does. It runs at the start of
#: the broker.
BUGS = """
from dataclasses import replace

from shoal.protocol.api import ApiKey
from shoal.security.plain import PlainUsers
from shoal.server.handlers import TABLES

verify = PlainUsers.verify


def verify_with_bug(self, name, password):
    if name == "bug":
        raise RuntimeError("a bug in logins")
    return verify(self, name, password)


def handle_with_bug(_broker, request):
    secret = request.body.hmac.decode()
    raise RuntimeError("a bug in requests")


PlainUsers.verify = verify_with_bug
for table in TABLES.values():
    row = table.get(ApiKey.EXPIRE_DELEGATION_TOKEN)
    if row is not None:
        table[row.key] = replace(row, handle=handle_with_bug)
"""


def spellings(secret: str | bytes) -> list[str]:
    """Return the ways in which a secret could be written."""
    data = secret if isinstance(secret, bytes) else secret.encode()
    found = [data.hex(), base64.b64encode(data).decode(), repr(data)[2:-1]]
    return found + ([secret] if isinstance(secret, str) else [])


def configs(folder: Path) -> dict[str, str]:
    stores = Stores(folder / "stores")
    identity = AUTHORITY.issue("server")
    tokens = stores.write("metrics-tokens", SECRETS["metrics-token"])
    pem = identity.key_pem(SECRETS["key-password"]) + identity.chain_pem
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,SSL:SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        JAAS: f'{PLAIN} user_ann="{SECRETS["plain"]}" user_bug="{SECRETS["bug"]}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "delegation.token.secret.key": SECRETS["token-key"],
        "connection.failed.authentication.delay.ms": "0",
        "listener.name.ssl.ssl.keystore.type": "PEM",
        "listener.name.ssl.ssl.keystore.location": str(stores.write("server.pem", pem)),
        KEY_PASSWORD: SECRETS["key-password"],
        "shoal.metrics.token.file": str(tokens),
    }


def log_in(address: str) -> list[str | bytes]:
    """Log in well and badly. Return the secrets that the broker has made: those of a token."""
    logins = ("ann", "plain"), ("ann", "wrong"), ("nobody", "unknown-user"), ("bug", "bug")
    for user, use in logins:
        with Dialogue(address) as dialogue:
            dialogue.handshake()
            dialogue.plain(user, SECRETS[use])
    for user, use in (("scram", "scram"), ("scram", "wrong"), ("made", "scram-of-request")):
        with Dialogue(address) as dialogue:
            dialogue.handshake("SCRAM-SHA-512")
            dialogue.scram_login(user, SECRETS[use], mechanism="SCRAM-SHA-512")
    for malformed in (
        f"{SECRETS['wrong']}",
        f"\0\0\0{SECRETS['wrong']}\0",
        f"n,,n={SECRETS['wrong']}",
    ):
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            with Dialogue(address) as dialogue:
                dialogue.handshake(mechanism)
                dialogue.token(malformed.encode())
    with Dialogue(address) as dialogue:
        dialogue.handshake()
        dialogue.plain("ann", SECRETS["plain"])
        owner = {"owner_principal_type": None, "owner_principal_name": None}
        body: dict[str, Any] = {**owner, "renewers": [], "max_lifetime_ms": -1}
        token = dialogue.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, body)
        dialogue.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
        expiry = {"hmac": SECRETS["bug"].encode(), "expiry_time_period_ms": -1}
        dialogue.call(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, expiry)
    with Dialogue(address) as dialogue:
        password = base64.b64encode(token.hmac).decode()
        dialogue.handshake("SCRAM-SHA-512")
        dialogue.scram_login(
            token.token_id, password, mechanism="SCRAM-SHA-512", extensions=",tokenauth=true"
        )
        assert dialogue.notes[-1][0] == "none", dialogue.notes
    return [token.hmac, password]


def alter(admin: WireClient, name: str, value: str) -> tuple[int, str]:
    """Alter a config of the broker. Return the error and its message."""
    config = {"name": name, "value": value, "config_operation": 0}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [config]}
    body = {"resources": [resource], "validate_only": False}
    (row,) = admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    return int(row.error_code), row.error_message or ""


def alter_secrets(admin: WireClient) -> Iterator[str]:
    """Store secrets, well and badly. Yield the messages."""
    wrong = SECRETS["wrong-key-password"]
    altered = [
        (KEY_PASSWORD, SECRETS["key-password"], True),
        (KEY_PASSWORD, wrong, False),
        ("listener.name.ssl.ssl.keystore.key", wrong, False),
        ("ssl.key.passwort", wrong, False),
        (JAAS, f'{PLAIN} user_ann="{wrong}";', True),
        (JAAS, f'{PLAIN} user_ann="{wrong}', False),
    ]
    for name, value, succeeds in altered:
        code, message = alter(admin, name, value)
        assert (code == 0) == succeeds, (name, message)
        yield message


def described(admin: WireClient) -> str:
    """Return all configs of the broker, with synonyms and documentation."""
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    return str(admin.call(ApiKey.DESCRIBE_CONFIGS, 4, body))


def dump(path: Path, *flags: str) -> str:
    """Return what `shoal dump` prints."""
    done = Shoal("").run("dump", *flags, str(path))
    return done.stdout + done.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_planted_secrets_are_nowhere(tmp_path: Path, form: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUGS)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    user = f"SCRAM-SHA-512=[name=scram,password={SECRETS['scram']}]"
    broker = ShoalProcess(
        tmp_path / "data",
        configs=configs(tmp_path),
        environment={"PYTHONPATH": path, "SHOAL_ADD_SCRAM": user},
        flags=[
            *(f"--listener={n}://{a}" for n, a in zip(("SASL", "SSL"), addresses, strict=True)),
            "--log-level=debug",
            *(["--log-json"] if form == "json" else []),
        ],
    ).start()
    add_scram_user(broker.bootstrap, "made", SECRETS["scram-of-request"])
    made = log_in(addresses[0])
    with WireClient(broker.bootstrap) as admin:
        texts = [*alter_secrets(admin), described(admin)]
    with Dialogue(addresses[0]) as dialogue:  # with the new config of JAAS, if there is one
        dialogue.handshake()
        dialogue.plain("ann", SECRETS["wrong"])
    request = urllib.request.Request(
        f"{broker.metrics_url}/metrics", headers={"Authorization": f"Bearer {SECRETS['bearer']}"}
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=60)
    assert broker.stop() == 0
    log = "\n".join(broker.log)
    for event in (
        "bug in logins",
        "bug in requests",
        "login failed",
        "logged in",
        "request allowed",
    ):
        assert event in log
    metadata = tmp_path / "data" / "__cluster_metadata-0"
    texts += [log, dump(metadata), dump(metadata, "--as=raw")]
    assert "UserScramCredentialRecord" in texts[-2]
    for secret in [*SECRETS.values(), *made]:
        for spelling in spellings(secret):
            shown = [text for text in texts if spelling in text]
            assert not shown, (spelling, shown)
