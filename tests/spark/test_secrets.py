"""Logins of queries: executors get delegation tokens, and Spark shows no secret."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError
from shoal.client.security import security
from shoal.security.credentials import compute_token_password
from shoal_spark import range_reader, redaction
from shoal_spark.delegation import ExecutorLogin
from shoal_spark.options import ConnectionOptions, InvalidOption, SourceOptions
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.security.scram_users import add_scram_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from shoal.client.admin.security_admin import DelegationToken

PLANTED, SECRET_KEY = "pl4nted-s3cret", "k3y-of-the-cluster"
PROGRAM = Path(__file__).parents[1] / "support" / "spark" / "spark_secrets.py"


class Broker:
    """A broker with a listener for SCRAM, and a user who may do everything."""

    def __init__(self, folder: Path, **configs: str) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        given = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SCRAM:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        }
        self.process = ShoalProcess(
            folder / "data",
            configs=given | {k.replace("_", "."): v for k, v in configs.items()},
            flags=[f"--listener=SCRAM://{self.address}", "--log-level=debug"],
        )

    def start(self) -> Broker:
        self.process.start()
        add_scram_user(self.process.bootstrap, "eve", PLANTED)
        return self

    def options(self, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.address,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.username": "eve",
            "kafka.sasl.password": PLANTED,
            **more,
        }

    @property
    def connection(self) -> ConnectionOptions:
        return SourceOptions.from_options(
            self.options(**{"group.id": "g", "subscribe": "t"})
        ).connection

    def tokens(self) -> list[DelegationToken]:
        with SyncClient(self.connection.settings) as client:
            return client.run(client.admin.tokens.describe())


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = Broker(tmp_path, delegation_token_secret_key=SECRET_KEY).start()
    yield found
    found.process.kill9()


# The driver's token.


def test_a_token_is_short_lived_extended_and_ended(broker: Broker) -> None:
    with SyncClient(broker.connection.settings) as client:
        login = ExecutorLogin(client, broker.connection, None, lifetime_ms=2000)
        given = login.get_current()
        assert given is not None
        assert login.get_current() == given
        (first,) = broker.tokens()
        assert first.expiry_ms - time.time() * 1000 <= 2000
        executor = range_reader.get_client(broker.connection.with_token(given))
        identity = executor.run(executor.admin.tokens.identity())
        assert identity is not None
        assert identity.principal == "User:eve"
        # A session ends with the token, so this also logs in again.
        eventually(lambda: broker.tokens()[0].expiry_ms > first.expiry_ms + 2000, timeout_s=30)
        executor.run(executor.admin.topics.list())
        login.close()
        assert broker.tokens() == []
        with (
            SyncClient(broker.connection.with_token(given).settings) as late,
            pytest.raises(ClientError),
        ):
            late.run(late.admin.topics.list())


def test_a_token_that_cannot_be_extended_is_replaced(tmp_path: Path) -> None:
    """delegation.token.max.lifetime.ms ends each token."""
    lifetimes = {"delegation_token_max_lifetime_ms": "3000"}
    broker = Broker(tmp_path, delegation_token_secret_key=SECRET_KEY, **lifetimes).start()
    try:
        with SyncClient(broker.connection.settings) as client:
            login = ExecutorLogin(client, broker.connection, None, lifetime_ms=1500)
            first = login.get_current()
            assert first is not None
            executor = range_reader.get_client(broker.connection.with_token(first))
            eventually(lambda: login.get_current() != first, timeout_s=30)
            second = login.get_current()
            assert second is not None
            # The previous token still works for its tasks.
            executor.run(executor.admin.topics.list())
            newer = range_reader.get_client(broker.connection.with_token(second))
            newer.run(newer.admin.topics.list())
            assert range_reader.get_client(broker.connection.with_token(second)) is newer
            login.close()
    finally:
        broker.process.kill9()


def test_clusters_that_issue_no_tokens(tmp_path: Path) -> None:
    """Executors use the query's login, unless tokens are required."""
    broker = Broker(tmp_path).start()
    try:
        with SyncClient(broker.connection.settings) as client:
            assert ExecutorLogin(client, broker.connection, None).get_current() is None
            assert ExecutorLogin(client, broker.connection, False).get_current() is None
            required = ExecutorLogin(client, broker.connection, True)
            with pytest.raises(InvalidOption, match=r"Set delegation\.token\.secret\.key on all"):
                required.get_current()
            required.close()
    finally:
        broker.process.kill9()


# What Spark shows.

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "g", "subscribe": "t"}


JAAS = f'x.ScramLoginModule required username="eve" password="{PLANTED}";'
CERTIFICATE = "-----BEGIN CERTIFICATE-----"
KEY = f"-----BEGIN PRIVATE KEY-----{PLANTED}"
SCRAM = {
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "eve",
    "kafka.sasl.password": PLANTED,
}
LOGINS: dict[str, dict[str, str]] = {
    "sasl.password": SCRAM,
    "sasl.jaas.config": {
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "Kafka.SASL.jaas.config": JAAS,
    },
    "shoal.delegation.token.hmac": {
        "kafka.shoal.delegation.token.id": "x",
        "kafka.shoal.delegation.token.hmac": PLANTED,
    },
    "ssl.key.pem": SCRAM | {"kafka.ssl.certificate.pem": CERTIFICATE, "kafka.ssl.key.pem": KEY},
    "ssl.keystore.key": SCRAM
    | {"kafka.ssl.keystore.certificate.chain": CERTIFICATE, "kafka.ssl.keystore.key": KEY},
    "ssl.key.password": SCRAM | {"kafka.ssl.key.password": PLANTED},
    "client.secret": {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp.example/token",
        "kafka.sasl.oauthbearer.client.credentials.client.id": "x",
        "kafka.sasl.oauthbearer.client.credentials.client.secret": PLANTED,
    },
}


@pytest.mark.parametrize("name", LOGINS)
def test_options_with_secrets_are_redacted(
    spark: SparkSession, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the plan, which event log and UI have too."""
    options = {**OPTIONS, "kafka.security.protocol": "SASL_SSL", **LOGINS[name]}
    spark.readStream.format("sharegroup").options(**options).load().explain(True)
    shown = capsys.readouterr().out
    assert PLANTED not in shown
    assert "=*********(redacted)" in shown
    assert f"group.id={OPTIONS['group.id']}" in shown


def test_all_secrets_are_redacted() -> None:
    for name in security.SECRETS:
        assert re.search(redaction.PATTERN, f"kafka.{name}")
    for name in ("sasl.mechanism", "ssl.ca.pem", "ssl.keystore.key.x"):
        assert not re.search(redaction.PATTERN, f"kafka.{name}")


def test_the_sessions_own_redaction_stays(spark: SparkSession) -> None:
    before = spark.conf.get(redaction.SETTING)
    assert before is not None
    assert before.startswith("(?i)url|")
    redaction.extend(spark)
    assert spark.conf.get(redaction.SETTING) == before


# A query.


def run(folder: Path, options: Mapping[str, str], spoil: Path) -> str:
    """Run the program with the options of a query. Return its output."""
    folder.mkdir()
    plan = {"options": options, "folder": str(folder), "spoil": str(spoil)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(plan)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def texts(folder: Path) -> dict[str, str]:
    """Return all that Spark shows, by file."""
    return {
        str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("kind", ["file", pytest.param("jaas", marks=pytest.mark.nightly)])
def test_spark_shows_no_secret(broker: Broker, tmp_path: Path, kind: str) -> None:
    """In plans, event log, UI, checkpoint and logs: neither the password of the options, however it
    is given, nor the token. Executors read without the password, which the file has lost then."""
    password, folder = tmp_path / "password", tmp_path / "out"
    password.write_text(PLANTED)
    options = broker.options(**{"delegation.token.enable": "true"})
    if kind == "file":
        options["kafka.sasl.password"] = f"${{directory:{tmp_path}:password}}"
    else:
        options = {k: v for k, v in options.items() if not k.startswith("kafka.sasl.")} | {
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required"
                f' username="eve" password="{PLANTED}";'
            ),
        }
    with SyncClient(broker.process.bootstrap) as client:
        queue = Queue(client, broker.address, partitions=2)
        queue.produce(range(20))
        output = run(
            folder, {**options, "group.id": queue.group, "subscribe": queue.topic}, password
        )
    rows = json.loads((folder / "query" / "rows.json").read_text())
    assert rows == sorted(map(str, range(20)))
    shown = {**texts(folder), "output": output}
    (token,) = {
        found[1]
        for line in broker.process.log
        if (found := re.search("created token (\\S+)", line))
    }
    secrets = {PLANTED, SECRET_KEY, compute_token_password(SECRET_KEY.encode(), token)}
    leaks = sorted(
        f"{name}: {one}" for name, text in shown.items() for one in secrets if one in text
    )
    assert leaks == []
    # The search looks into the right places.
    events = "".join(text for name, text in shown.items() if name.startswith("events"))
    assert queue.topic in events
    assert "spark.eventLog.dir" in shown["page-0.html"]
    assert "kafka.sasl.mechanism" in shown["query/plan.txt"]
    assert broker.tokens() == []
