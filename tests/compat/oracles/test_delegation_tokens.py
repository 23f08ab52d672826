"""Delegation tokens: the same requests over SASL to Apache Kafka and to Shoal, equal answers.

`test_security_admin` has them with an authorizer, and without a secret key.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from shoal.protocol.errors import ErrorCode
from support.brokers.shared_servers import controller_pid
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually
from support.security.sasl_listeners import shared_kafka
from support.security.token_brokers import (
    BOB,
    CONFIGS,
    EXPIRE,
    HOUR_MS,
    MODULE,
    RENEW,
    USERS,
    Pair,
    Running,
    running_shoal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.security.token_brokers import Principal

pytestmark = [pytest.mark.java, pytest.mark.nightly]


@pytest.fixture(scope="module")
def pair(run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    kafka = shared_kafka(run_directory, controller_pid())
    with running_shoal(tmp_path_factory.mktemp("tokens"), CONFIGS) as shoal:
        yield Running(kafka.addresses, shoal).pair()


def test_creations(pair: Pair) -> None:
    owners: list[Principal] = [
        (None, None),
        BOB,
        ("User", ""),
        (None, "bob"),
        ("User", None),
        (None, ""),
        ("User", "alice"),
    ]
    for owner in owners:
        pair.same("create", "alice", owner=owner)
    lists: list[tuple[tuple[str, str], ...]] = [
        (BOB, BOB),
        (("User", ""),),
        (("Group", "x"),),
        (BOB, ("user", "bob")),
        (("", ""),),
    ]
    for renewers in lists:
        pair.same("create", "alice", renewers=renewers)
    for lifetime_ms in (0, 1, 2 * HOUR_MS, 11 * HOUR_MS, (1 << 63) - 1, -5, -(1 << 63)):
        pair.same("create", "alice", max_lifetime_ms=lifetime_ms)
    for version in (1, 2):
        pair.same("create", "alice", version=version, renewers=(BOB,))


@pytest.mark.parametrize("owner", [("Node", "own"), ("Group", "x"), ("user", "bob"), ("", "bob")])
def test_owners_that_are_no_users(pair: Pair, owner: Principal) -> None:
    """Kafka checks the type of renewers only. A token for Node:own had all rights in Shoal."""
    _, shoal = pair.brokers
    refused = ErrorCode.invalid_principal_type
    assert shoal.create("alice", owner=owner)["error_code"] == refused


def test_descriptions(pair: Pair) -> None:
    pair.same("create", "alice", renewers=(BOB,))
    pair.same("create", "bob")
    pair.same("create", "alice", owner=("User", "carol"))
    for version in (1, 2, 3):
        for user in USERS:
            for owners in (
                None,
                [],
                [BOB],
                [("User", "alice")],
                [("User", "carol"), BOB, BOB],
                [("Group", "bob")],
                [("User", "nobody")],
            ):
                pair.same("describe", user, owners, version)


def test_changes(pair: Pair) -> None:
    """The owner and the renewers may change a token, the requester may not."""
    pair.same("create", "carol", owner=("User", "alice"), renewers=(BOB,))
    (number,) = {len(broker.tokens) - 1 for broker in pair.brokers}
    for user in USERS:
        for period_ms in (-1, 0, 2 * HOUR_MS, 9 * HOUR_MS, (1 << 63) - 1, -(1 << 63)):
            pair.same("change", user, RENEW, number, period_ms)
        pair.same("change", user, RENEW, -1, HOUR_MS)
        for period_ms in (3 * HOUR_MS, 20 * HOUR_MS, (1 << 63) - 1):
            pair.same("change", user, EXPIRE, number, period_ms)
        pair.same("change", user, EXPIRE, -1, HOUR_MS)
    pair.same("change", "alice", RENEW, number, HOUR_MS, 1)
    pair.same("change", "alice", EXPIRE, number, HOUR_MS, 1)
    # From now on the token is expired.
    assert pair.same("change", "bob", EXPIRE, number, 0) == (0, 0)
    for user in USERS:
        for api in (RENEW, EXPIRE):
            pair.same("change", user, api, number, HOUR_MS)
    pair.same("describe", "alice", None)
    pair.same("change", "carol", EXPIRE, number, -1)
    assert pair.same("change", "alice", EXPIRE, number, -1)[0] == 0
    for api in (RENEW, EXPIRE):
        pair.same("change", "alice", api, number, HOUR_MS)


def test_a_login_by_token_may_not_manage_tokens(pair: Pair) -> None:
    pair.same("create", "alice")
    answers = pair.same("ask_by_token")
    assert {answer["error_code"] for answer in answers} == {
        ErrorCode.delegation_token_request_not_allowed
    }


def login(path: Path, name: str, mechanism: str, login: str) -> Path:
    """Write the properties of a Java client that logs in."""
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    path /= name
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={MODULE}.{kind}LoginModule required {login};\n"
    )
    return path


def test_kafkas_tool(pair: Pair, tmp_path: Path) -> None:
    """kafka-delegation-tokens creates a token and shows it, and the Java client logs in by it."""
    _, broker = pair.brokers
    tools = KafkaTools(broker.address)
    alice = login(tmp_path, "alice", "PLAIN", 'username="alice" password="alice"')
    config = ("--command-config", str(alice))
    created = tools.run(
        "delegation-tokens", "--create", "--max-life-time-period", "-1", *config,
        "--renewer-principal", "User:bob",
    )  # fmt: skip
    token_id, mac, *principals = created.strip().splitlines()[-1].split()
    assert principals[:2] == ["User:alice", "User:alice"]
    eventually(lambda: broker.known(token_id), what="the token")
    words = f'username="{token_id}" password="{mac}" tokenauth="true"'
    with_token = login(tmp_path, "token", "SCRAM-SHA-256", words)
    listed = tools.run("topics", "--list", "--command-config", str(with_token))
    assert "Exception" not in listed
    shown = tools.run("delegation-tokens", "--describe", *config, "--owner-principal", "User:alice")
    assert token_id in shown
    end = {"hmac": base64.b64decode(mac), "expiry_time_period_ms": -1}
    assert broker.ask("alice", EXPIRE, 2, end).error_code == 0
    eventually(lambda: not broker.known(token_id), what="the end of the token")
