"""What security costs Shoal's brokers, in CPU time for equal requests:

* TLS, beside what `openssl speed` needs for the same bytes and cipher,
* a login by SCRAM, with its connection,
* ten thousand access control entries, beside a few,
* a listener without TLS and a broker without an authorizer, beside the last tree before security.

Both sides of a comparison alternate in short pieces, and a figure is the median of pairs of
neighbours: what else the machine does distorts both alike. The last comparison has all changes
since that tree, not only those of security.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
from typing import TYPE_CHECKING

import raw_requests
from brokers import Shoal, free_port
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from earlier_tree import NoHistory, OfTree, before_security, compiled, extract
from load_checks import LoadFailed
from raw_requests import Socket
from results import Figures, Goal, Results
from security import PASSWORD, SSL, USER, Security
from shoal.client.errors import ClientError
from shoal.client.net.connection import connect
from shoal.client.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from brokers import Broker

TOPIC = "costs"
GB = 1e9
CIPHER, OPENSSL_CIPHER = "TLS_AES_256_GCM_SHA384", "aes-256-gcm"
#: A TLS record at most.
RECORD_BYTES = 16_384
TLS_ROWS = {"fetch": "TLS, fetches of 1 MB", "produce": "TLS, produces of 1 MB"}
LOGIN_ROW, MECHANISM, LOGINS = "a login by SCRAM-SHA-512", "SCRAM-SHA-512", 20
ENTRIES = 10_000
ENTRIES_ROW = "rates with 10,000 access control entries"
PLAIN_ROW = "rates without TLS and authorizer"
KINDS = ("produce", "fetch", "metadata")
GOALS: dict[str, dict[str, Goal]] = {
    "TLS, ": {"tls_times": Goal(2.0, more=False, alone=True)},
    LOGIN_ROW: {"login_cpu_ms": Goal(1.0, more=False, alone=True)},
    ENTRIES_ROW: {"lost_percent": Goal(3.0, more=False, alone=True)},
    PLAIN_ROW: {"lost_percent": Goal(2.0, more=False, alone=True)},
}
FIGURES = ["tls_times", "tls_s_gb", "openssl_s_gb", "login_cpu_ms", "lost_percent"]
#: Pieces of each side, and requests of a piece.
PIECES, LARGE, SMALL, DEPTH = 30, 25, 2_000, 20
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Earlier(OfTree):
    """A broker of the last tree before security."""


def in_pieces(works: Sequence[tuple[Broker, Callable[[], object]]]) -> list[list[float]]:
    """Do each work in turn, several times. Return the CPU seconds that the pieces take their
    brokers, by work. Pieces of the same index are neighbours in time."""
    used: list[list[float]] = [[] for _ in works]
    for number in range(-1, PIECES):
        order = list(enumerate(works))
        for index, (broker, work) in order if number % 2 else order[::-1]:
            before = broker.cpu_s()
            work()
            if number >= 0:
                used[index].append(broker.cpu_s() - before)
    return used


# TLS


def openssl_s_gb() -> float:
    """Return the CPU seconds that `openssl speed` needs for a GB of this cipher."""
    words = ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(RECORD_BYTES)]
    done = subprocess.run(
        [*words, "-evp", OPENSSL_CIPHER], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("+F:")]
    if done.returncode or not lines:
        raise LoadFailed(f"openssl speed: {(done.stdout + done.stderr)[-500:]}")
    return GB / float(lines[-1].rpartition(":")[2])


def tls(broker: Broker, security: Security) -> dict[str, Figures]:
    """Measure what TLS adds to produces and fetches of one broker with both listeners."""
    with Socket(broker.port) as plain, Socket(broker.secured_port, security.context()) as secured:
        if secured.cipher != CIPHER:
            raise LoadFailed(f"the cipher is {secured.cipher}, not {CIPHER}")
        plain.create_topic(TOPIC)
        produce, fetch = raw_requests.produce(TOPIC, 900, 1_100), raw_requests.fetch(TOPIC, 1 << 20)
        plain.repeat(produce, 1)
        sizes = {"produce": len(produce), "fetch": plain.repeat(fetch, 1)}
        if sizes["fetch"] < sizes["produce"] * 0.9:
            raise LoadFailed(f"a fetch has {sizes['fetch']} bytes")
        found = {}
        for kind, row in TLS_ROWS.items():
            sent, size = {"produce": produce, "fetch": fetch}[kind], sizes[kind]
            works = [
                (broker, lambda one=one, sent=sent: one.repeat(sent, LARGE))
                for one in (plain, secured)
            ]
            before = openssl_s_gb()
            pairs = zip(*in_pieces(works), strict=True)
            openssl = (before + openssl_s_gb()) / 2
            added_s = statistics.median(ours - base for base, ours in pairs)
            added = added_s / (LARGE * size / GB)
            found[row] = {
                "tls_times": added / openssl,
                "tls_s_gb": added,
                "openssl_s_gb": openssl,
            }
    return found


# Logins


class WithLogins(Shoal):
    """A broker with a listener on which clients log in."""

    def __init__(self, folder: Path) -> None:
        configs = {
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT"
            ),
            "listener.name.login.sasl.enabled.mechanisms": MECHANISM,
        }
        super().__init__(folder, configs=configs)
        self.login_port = free_port()

    def command(self) -> list[str]:
        user = f"{MECHANISM}=[name={USER},password={PASSWORD}]"
        more = (f"--listener=LOGIN://127.0.0.1:{self.login_port}", f"--add-scram={user}")
        return [*super().command(), *more]


async def log_in(settings: Settings) -> None:
    """Log in several times, each over a connection of its own."""
    for _ in range(LOGINS):
        connection = await connect(settings, settings.bootstrap[0])
        connection.close()


def logins(folder: Path) -> dict[str, Figures]:
    broker = WithLogins(folder)
    settings = Settings.from_bootstrap(
        f"127.0.0.1:{broker.login_port}",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
    )
    try:
        broker.start()
        (used,) = in_pieces([(broker, lambda: asyncio.run(log_in(settings)))])
        return {LOGIN_ROW: {"login_cpu_ms": 1000 * statistics.median(used) / LOGINS}}
    except ClientError as error:
        raise LoadFailed(str(error)) from None
    finally:
        broker.kill9()


# Access control entries, and a broker without them


def entries(count: int) -> list[AclBinding]:
    """Return the entries that this client needs, and others: for the same topic, for other topics
    and for prefixes."""

    def entry(
        name: str, user: str, operation: AclOperation, pattern: ResourcePatternType
    ) -> AclBinding:
        allow = AclPermissionType.ALLOW
        return AclBinding(ResourceType.TOPIC, name, pattern, user, "*", operation, allow)

    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    found = [
        entry(TOPIC, "User:ANONYMOUS", operation, literal)
        for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    for n in range(count - len(found)):
        user = f"User:user-{n}"
        if n % 100 == 0:
            found.append(entry(TOPIC, user, AclOperation.READ, literal))
        elif n % 10 == 0:
            found.append(entry(f"co{n}", user, AclOperation.READ, prefixed))
        else:
            found.append(entry(f"topic-{n % 1000}", user, AclOperation.READ, literal))
    return found


def create_entries(admin: AdminClient, bindings: Sequence[AclBinding]) -> None:
    """Create entries by several requests."""
    for first in range(0, len(bindings), 500):
        for future in admin.create_acls(list(bindings[first : first + 500])).values():
            future.result(60)


def lost_percent(base: Broker, other: Broker) -> Mapping[str, float]:
    """Return how much more CPU `other` takes for small requests than `base`, by kind."""
    found = {}
    with Socket(base.port) as one, Socket(other.port) as two:
        for side in (one, two):
            side.create_topic(TOPIC)
        requests = {
            "produce": raw_requests.produce(TOPIC, 1, 1000),
            "fetch": raw_requests.fetch(TOPIC, 1000),
            "metadata": raw_requests.metadata(TOPIC),
        }
        for kind in KINDS:
            sent = requests[kind]
            works = [
                (broker, lambda side=side, sent=sent: side.repeat(sent, SMALL, DEPTH))
                for broker, side in ((base, one), (other, two))
            ]
            pairs = zip(*in_pieces(works), strict=True)
            found[kind] = 100 * (statistics.median(ours / base for base, ours in pairs) - 1)
    return found


def compared(
    row: str, base: Broker, other: Broker, prepare: Callable[[], object]
) -> dict[str, Figures]:
    """Start both brokers, compare them, and kill them."""
    try:
        for broker in (base, other):
            broker.start()
        prepare()
        return {
            f"{row}, {kind}": {"lost_percent": lost}
            for kind, lost in lost_percent(base, other).items()
        }
    finally:
        for broker in (base, other):
            broker.kill9()


def with_entries(folder: Path) -> dict[str, Figures]:
    configs = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    few, many = (Shoal(folder / name, configs=configs) for name in ("few", "many"))

    def prepare() -> None:
        for broker, count in ((few, 3), (many, ENTRIES)):
            admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 3})
            create_entries(admin, entries(count))

    return compared(ENTRIES_ROW, few, many, prepare)


def without(folder: Path) -> dict[str, Figures]:
    Earlier.packages = compiled(extract(folder / "earlier-tree", before_security()))
    return compared(PLAIN_ROW, Earlier(folder / "earlier"), Shoal(folder / "now"), lambda: None)


def with_tls(folder: Path) -> dict[str, Figures]:
    security = Security(folder / "certificates", SSL)
    broker = Shoal(folder / "broker", security)
    try:
        broker.start()
        return tls(broker, security)
    finally:
        broker.kill9()


MEASUREMENTS = {"TLS, ": with_tls, LOGIN_ROW: logins, ENTRIES_ROW: with_entries, PLAIN_ROW: without}


def measure(
    rounds: int, folder: Path, results: Results, wanted: Callable[[str], bool] = lambda _: True
) -> None:
    """Run all rounds of the rows that are wanted, each with new brokers."""
    for row, measurement in MEASUREMENTS.items():
        for number in range(rounds) if wanted(row) else ():
            try:
                found = measurement(folder / f"costs-{len(row)}-{number}")
            except (LoadFailed, NoHistory, OSError) as error:
                results.fail(row, "shoal", error)
                break
            for name, figures in found.items():
                results.add(name, "shoal", figures)
                print(f"{name:45} {json.dumps(figures)}", flush=True)
