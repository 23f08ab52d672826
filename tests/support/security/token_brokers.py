"""Delegation tokens of Apache Kafka and of Shoal, asked for over SASL by `Broker` and `Pair`.

Kafka applies a change of a token some time after it has answered. So each change is awaited.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import hmac
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.security.sasl_dialogue import Dialogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SECRET = "secret of the test"
MODULE = "org.apache.kafka.common.security"
USERS = ("alice", "bob", "carol")
#: Lifetimes are compared in hours, as two brokers do not act at the same time.
HOUR_MS = 3_600_000
#: PLAIN has all users, with their names as passwords.
CONFIGS = {
    "delegation.token.secret.key": SECRET,
    "delegation.token.max.lifetime.ms": str(10 * HOUR_MS),
    "delegation.token.expiry.time.ms": str(4 * HOUR_MS),
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl.plain.sasl.jaas.config": (
        f"{MODULE}.plain.PlainLoginModule required "
        + " ".join(f'user_{name}="{name}"' for name in USERS)
        + ";"
    ),
    "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
        f"{MODULE}.scram.ScramLoginModule required;"
    ),
}
Principal = tuple[str | None, str | None]
BOB = ("User", "bob")
RENEW, EXPIRE = ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN


class Broker:
    """A broker of either kind with a SASL listener."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: Tokens in the order of their creation.
        self.tokens: list[Any] = []

    def ask(self, user: str, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send one request as a user."""
        with Dialogue(self.address) as dialogue:
            dialogue.handshake()
            dialogue.plain(user, user)
            return dialogue.call(api, version, body)

    def create(
        self,
        user: str,
        *,
        owner: Principal = (None, None),
        renewers: tuple[tuple[str, str], ...] = (),
        max_lifetime_ms: int = -1,
        version: int = 3,
    ) -> Any:
        """Create a token. Return the answer without what differs between two brokers."""
        body: dict[str, Any] = {
            "renewers": [{"principal_type": t, "principal_name": n} for t, n in renewers],
            "max_lifetime_ms": max_lifetime_ms,
        }
        if version >= 3:
            body |= {"owner_principal_type": owner[0], "owner_principal_name": owner[1]}
        found = self.ask(user, ApiKey.CREATE_DELEGATION_TOKEN, version, body)
        if found.error_code:
            return vars(found)
        self.tokens.append(found)
        secret = hmac.new(SECRET.encode(), found.token_id.encode(), hashlib.sha512).digest()
        assert found.hmac == secret
        eventually(lambda: self.known(found.token_id), what="the token")
        issued_ms = found.issue_timestamp_ms
        return vars(found) | {
            "issue_timestamp_ms": 0,
            "expiry_timestamp_ms": found.expiry_timestamp_ms - issued_ms,
            "max_timestamp_ms": found.max_timestamp_ms - issued_ms,
            "token_id": len(found.token_id),
            "hmac": len(found.hmac),
        }

    def known(self, token_id: str) -> Any:
        """Return a token as it is described, or None."""
        answer = self.ask("carol", ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
        return next((t for t in answer.tokens if t.token_id == token_id), None)

    def describe(self, user: str, owners: list[tuple[str, str]] | None, version: int = 3) -> Any:
        named = None
        if owners is not None:
            named = [{"principal_type": t, "principal_name": n} for t, n in owners]
        answer = self.ask(user, ApiKey.DESCRIBE_DELEGATION_TOKEN, version, {"owners": named})
        numbers = {token.token_id: n for n, token in enumerate(self.tokens)}
        rows = []
        for token in answer.tokens:
            created = self.tokens[numbers[token.token_id]]
            assert token.hmac == created.hmac
            assert token.issue_timestamp == created.issue_timestamp_ms
            assert token.max_timestamp == created.max_timestamp_ms
            renewers = [(r.principal_type, r.principal_name) for r in token.renewers]
            about = [token.principal_type, token.principal_name]
            if version >= 3:
                about += [token.token_requester_principal_type]
                about += [token.token_requester_principal_name]
            life_ms = token.expiry_timestamp - token.issue_timestamp
            rows.append((numbers[token.token_id], *about, renewers, hours(life_ms)))
        return answer.error_code, sorted(rows)

    def change(self, user: str, api: ApiKey, number: int, period_ms: int, version: int = 2) -> Any:
        """Renew or expire a token. Return the error, and the new life in hours."""
        token = self.tokens[number] if number >= 0 else None
        name = "renew" if api is ApiKey.RENEW_DELEGATION_TOKEN else "expiry_time"
        body = {"hmac": token.hmac if token else b"x", f"{name}_period_ms": period_ms}
        answer = self.ask(user, api, version, body)
        if answer.error_code or token is None:
            return answer.error_code, answer.expiry_timestamp_ms
        is_removed = api is ApiKey.EXPIRE_DELEGATION_TOKEN and period_ms < 0

        def is_applied() -> bool:
            known = self.known(token.token_id)
            if known is None or is_removed:
                return known is None and is_removed
            return bool(known.expiry_timestamp == answer.expiry_timestamp_ms)

        eventually(is_applied, what="the change of the token")
        return answer.error_code, hours(answer.expiry_timestamp_ms - token.issue_timestamp_ms)

    def allow(self, user: str, operation: int, resource_type: int, name: str | int) -> int:
        """Let a user perform an operation on a resource; a number is that of a token."""
        creation = {
            "resource_type": resource_type,
            "resource_name": self.tokens[name].token_id if isinstance(name, int) else name,
            "resource_pattern_type": 3,
            "principal": f"User:{user}",
            "host": "*",
            "operation": operation,
            "permission_type": 3,
        }
        answer = self.ask("carol", ApiKey.CREATE_ACLS, 3, {"creations": [creation]})

        def is_known() -> bool:
            body = {
                "resource_type_filter": resource_type,
                "resource_name_filter": creation["resource_name"],
                "pattern_type_filter": 3,
                "principal_filter": creation["principal"],
                "host_filter": None,
                "operation": operation,
                "permission_type": 3,
            }
            return bool(self.ask("carol", ApiKey.DESCRIBE_ACLS, 3, body).resources)

        eventually(is_known, what="the entry")
        return int(answer.results[0].error_code)

    def ask_by_token(self) -> list[dict[str, Any]]:
        """Log in by the last token, and return the answers to all requests for tokens."""
        token = self.tokens[-1]
        with Dialogue(self.address) as dialogue:
            dialogue.handshake("SCRAM-SHA-256")
            password = base64.b64encode(token.hmac).decode()
            dialogue.scram_login(token.token_id, password, extensions=",tokenauth=true")
            assert dialogue.notes[-1][0] == "none", dialogue.notes
            requests: list[tuple[ApiKey, int, dict[str, Any]]] = [
                (ApiKey.CREATE_DELEGATION_TOKEN, 3, {"renewers": [], "max_lifetime_ms": -1}),
                (ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None}),
                (RENEW, 2, {"hmac": token.hmac, "renew_period_ms": -1}),
                (EXPIRE, 2, {"hmac": token.hmac, "expiry_time_period_ms": -1}),
            ]
            return [plain(dialogue.call(*request)) for request in requests]


def plain(answer: Any) -> dict[str, Any]:
    if isinstance(answer, SimpleNamespace):
        return vars(answer)
    return dataclasses.asdict(answer)


def hours(duration_ms: int) -> int:
    return round(duration_ms / HOUR_MS)


class Pair:
    """Both brokers."""

    def __init__(self, kafka: Broker, shoal: Broker) -> None:
        self.brokers = kafka, shoal

    def same(self, method: str, *values: Any, **options: Any) -> Any:
        """Call a method of both. Check that the results are equal, and return one."""
        kafka, shoal = (getattr(b, method)(*values, **options) for b in self.brokers)
        assert shoal == kafka, (method, values, options)
        return shoal


class Running(NamedTuple):
    """Addresses of both brokers by the names of their listeners, PLAINTEXT and SASL."""

    kafka: Mapping[str, str]
    shoal: Mapping[str, str]

    def pair(self) -> Pair:
        """Return both without tokens that the caller does not know."""
        return Pair(Broker(self.kafka["SASL"]), Broker(self.shoal["SASL"]))


@contextlib.contextmanager
def running(folder: Path, configs: Mapping[str, str]) -> Iterator[Running]:
    """Run both with these configs."""
    kafka = KafkaProcess(folder / "kafka", listeners={"SASL": "SASL_PLAINTEXT"}, configs=configs)
    kafka.start()
    try:
        with running_shoal(folder, configs) as addresses:
            yield Running(kafka.addresses, addresses)
    finally:
        kafka.kill9()


@contextlib.contextmanager
def running_shoal(folder: Path, configs: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Run a Shoal with these configs, and yield its addresses."""
    (port,) = free_ports(1)
    process = ShoalProcess(
        folder / "shoal",
        configs={
            **configs,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        },
        flags=(f"--listener=SASL://127.0.0.1:{port}",),
    ).start()
    yield {"PLAINTEXT": process.bootstrap, "SASL": f"127.0.0.1:{port}"}
    assert process.stop() == 0, "\n".join(process.log[-40:])
