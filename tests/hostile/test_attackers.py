"""Attackers one after the other, at night also together, and a quiet client beside them.

The bar: while the quiet client waits for an answer, the broker spends at most `TURN_S` of CPU time
on one attacker, and `TURN_TOGETHER_S` on all; its memory returns; nobody is fenced. CPU time
depends little on what else runs on the machine. A whole attack also keeps the client waiting for at
most `WAIT_S` by the clock, without the time for which the kernel had no core for the broker or the
client: the attackers and other processes take the same cores. `make hostile` runs everything,
`make test` a part of each attack.
"""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from kio.static.constants import EntityType
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.server.handlers import HANDLERS
from support.attacks import existing_names
from support.attacks.attack_catalogue import CATALOGUE
from support.attacks.attackers import LEFT_OUT, Target, make_largest_frames, send_and_wait
from support.attacks.large_requests import find_arrays, make_large_requests, make_longest_request
from support.attacks.login_attackers import LOGINS, SECURED
from support.attacks.quiet_clients import QuietClient
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually, fits_cpu
from support.security import permissions
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.server.network.api import Api

#: The longest turn of the event loop, in seconds of CPU time; more on a slow core
#: (`conditions.fits_cpu`).
TURN_S = 0.1
#: The same for all attackers together. Before the loop comes to the quiet client again, it handles
#: a request or a piece of one for each of some 30 attackers, and each takes some milliseconds.
TURN_TOGETHER_S = 0.5
#: The longest wait by the clock, for which no core was missing, in seconds: for the broker's disk,
#: for instance.
WAIT_S = 1.0
#: How often a single request, or an attack, has to take longer: on a busy machine the same work
#: takes up to twice as much CPU time.
ATTEMPTS = 3
#: What an attack may leave behind, in megabytes.
MEMORY_MB = 20
#: What a broker may have in memory at the worst moment of all attacks, in megabytes.
PEAK_MB = 600
#: From this part on, an attack is whole: the attackers together have half of it each.
WHOLE_PART = 0.5
#: What requests name that are only read.
NAMED = existing_names.Existing(["t", "u"], [UUID(int=1)], ["g"], ["i"], [1], ["u"])
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]
#: A part of each attack, or all of it.
PARTS = [pytest.param(0.05, id="short"), pytest.param(1.0, id="whole", marks=NIGHTLY)]
MODULE = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker with an authorizer, for attackers that may do everything or nothing, and with
    listeners for logins, for controllers and with TLS."""
    port, controllers, secured = free_ports(3)
    folder = tmp_path_factory.mktemp("hostile")
    protocols = f"PLAINTEXT:PLAINTEXT,{LOGINS}:SASL_PLAINTEXT,{SECURED}:SSL"
    configs = {
        **permissions.CONFIGS,
        **Stores(folder / "stores").configs(Authority().issue("server"), None),
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "PLAINTEXT",
        "auto.create.topics.enable": "false",
        "log.cleaner.backoff.ms": "100",
        "delegation.token.secret.key": "secret of the test",
        f"listener.name.{LOGINS.lower()}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"listener.name.{LOGINS.lower()}.scram-sha-512.sasl.jaas.config": (
            f"{MODULE}.scram.ScramLoginModule required;"
        ),
    }
    broker = ShoalProcess(
        folder / "data",
        configs=configs,
        flags=(
            f"--listener={LOGINS}://127.0.0.1:{port}",
            f"--listener={SECURED}://127.0.0.1:{secured}",
            "--node-id=1",
            f"--quorum=1@127.0.0.1:{controllers}",
            "--cluster-id=hostile",
        ),
    ).start()
    with WireClient(broker.bootstrap, source=permissions.ADMIN) as admin:
        admin.create_topic("quiet")
        permissions.grant(admin, permissions.everything(permissions.ADMIN))
    yield Target(
        broker,
        f"127.0.0.1:{port}",
        f"127.0.0.1:{controllers}",
        f"127.0.0.1:{secured}",
        1.0,
    )
    assert read_peak_mb(broker) < PEAK_MB
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


def read_peak_mb(broker: ShoalProcess) -> float:
    """Return the most memory that a broker has had until now, in megabytes."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6


@pytest.fixture
def quiet(target: Target) -> Iterator[QuietClient]:
    client = QuietClient(target.broker)
    client.start()
    eventually(lambda: client.answers > 10)
    client.reset()
    yield client
    client.end()


def name_of(key: int) -> str:
    return ApiKey(key).name


def check_memory(target: Target, before_mb: float, attack: Callable[[], None]) -> None:
    """Check that the broker's memory returns to what it was. What an attack leaks, each repetition
    leaks again; what the allocator keeps in pieces, it uses again."""

    def returns() -> bool:
        more_mb = target.broker.resident_mb() - before_mb
        assert more_mb < MEMORY_MB, f"{more_mb:.0f} MB more than before"
        return True

    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            eventually(returns, timeout_s=20 if attempts_left else 60)
            return
        except AssertionError:
            if not attempts_left:
                raise
        before_mb = target.broker.resident_mb()
        attack()


def read_longest_turn(target: Target, quiet: QuietClient) -> float:
    """Return the longest turn in seconds. Together, attackers give the broker's other threads work
    for all cores, which does not count."""
    return quiet.longest_s if target.is_alone else quiet.longest_loop_s


def check(target: Target, quiet: QuietClient, attack: Callable[[Target], None]) -> None:
    """Attack twice. What the first time leaves in caches and in pages that are used again does not
    count."""
    turn_s = TURN_S if target.is_alone else TURN_TOGETHER_S
    attack(target)
    before_mb = target.broker.resident_mb()
    attack(target)
    for _ in range(ATTEMPTS - 1):
        if not fits_cpu(read_longest_turn(target, quiet), turn_s):
            quiet.reset()
            attack(target)
    longest_s = read_longest_turn(target, quiet)
    assert fits_cpu(longest_s, turn_s), f"a turn of {longest_s:.2f} s of CPU time"
    if target.part >= WHOLE_PART:
        assert quiet.longest_wall_s <= WAIT_S, f"a wait of {quiet.longest_wall_s:.2f} s"
    assert quiet.failure is None
    assert not quiet.fenced
    check_memory(target, before_mb, partial(attack, target))
    assert not [line for line in target.broker.log if "a request failed" in line]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("attack", CATALOGUE, ids=lambda attack: attack.__name__)
def test_an_attacker(
    target: Target, quiet: QuietClient, attack: Callable[[Target], None], part: float
) -> None:
    check(target._replace(part=part), quiet, attack)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_all_attackers_together(target: Target, quiet: QuietClient) -> None:
    def attack(target: Target) -> None:
        with ThreadPoolExecutor(len(CATALOGUE)) as pool:
            attacks = [pool.submit(one, target) for one in CATALOGUE]
        for one in attacks:
            one.result()

    check(target._replace(part=WHOLE_PART, is_alone=False), quiet, attack)


@pytest.mark.nightly
def test_a_wait_that_takes_no_cpu_time_is_seen(target: Target, quiet: QuietClient) -> None:
    """As for a disk. The broker is stopped, for longer than others may have to wait."""
    os.kill(target.broker.pid, signal.SIGSTOP)
    end_s = time.monotonic() + 2 * WAIT_S
    eventually(lambda: time.monotonic() > end_s)
    os.kill(target.broker.pid, signal.SIGCONT)
    eventually(lambda: quiet.longest_wall_s > WAIT_S)
    assert fits_cpu(quiet.longest_s, TURN_S)


def test_each_api_is_attacked() -> None:
    """With its largest requests, which are made from its schema: a new API gets them by itself."""
    marks = vars(test_the_largest_requests_of_an_api)["pytestmark"]
    (table,) = [mark for mark in marks if mark.name == "parametrize"]
    assert {*table.args[1], ApiKey.UNREGISTER_BROKER} == set(HANDLERS)
    for key, row in HANDLERS.items():
        for version in {row.versions[0], row.versions[-1]}:
            layout = codec.build_struct(codec.load_entity(key, version, EntityType.request))
            larges = list(make_large_requests(ApiKey(key), version, entries=20))
            assert len(larges) == len(list(find_arrays(layout)))
            for large in larges:
                read_as_broker(row, version, large.frame)
            read_as_broker(row, version, make_longest_request(ApiKey(key), version))
            named = existing_names.make_existing_requests(ApiKey(key), version, NAMED, 60)
            for large in named:
                read_as_broker(row, version, large.frame)


def read_as_broker(row: Api, version: int, frame: bytes) -> None:
    """Read a request as a broker does. Raises `WireError` if it is not admitted."""
    view, header = memoryview(frame), frames.read_request_header(frame, row.versions)
    if row.read is None:
        codec.read_request(row.key, version, view, header.body_at)
    else:
        row.read(version, view, header.body_at)


@pytest.mark.nightly
@pytest.mark.parametrize("key", [key for key in HANDLERS if key not in LEFT_OUT], ids=name_of)
def test_the_largest_requests_of_an_api(target: Target, quiet: QuietClient, key: int) -> None:
    """Each array full of short or long names, made from the schemas, in the first and the last
    version. Those of a client without permissions cost no more."""
    api = ApiKey(key)
    check_largest(target, quiet, api, list(make_largest_frames(api)))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("key", [key for key in HANDLERS if key not in LEFT_OUT], ids=name_of)
def test_the_largest_requests_of_what_exists(target: Target, quiet: QuietClient, key: int) -> None:
    """The same with names of topics, partitions, groups, transactional ids, producers and users
    that exist, each of them again and again."""
    api = ApiKey(key)
    existing = existing_names.prepare(target)
    entries = codec.find_max_entries(api) - 10
    version = HANDLERS[api].versions[-1]
    larges = existing_names.make_existing_requests(api, version, existing, entries)
    check_largest(target, quiet, api, [(large.path, large.frame) for large in larges])


def check_largest(
    target: Target, quiet: QuietClient, api: ApiKey, frames: list[tuple[str, bytes]]
) -> None:
    """Send each of these requests as a super user and as a client without permissions."""
    slow: dict[str, float] = {}
    closed: list[str] = []

    def attack() -> None:
        for refused in (False, True):
            for name, frame in frames:
                for _ in range(ATTEMPTS):
                    quiet.reset()
                    with target.connect(refused=refused, api=api) as client:
                        if not send_and_wait(client, frame):
                            closed.append(name)
                    if fits_cpu(quiet.longest_s, TURN_S):
                        break
                else:
                    slow[f"{name}{' refused' * refused}"] = round(quiet.longest_s, 2)

    attack()
    assert not slow, f"longest turns in seconds of CPU time: {slow}"
    before_mb = target.broker.resident_mb()
    attack()
    check_memory(target, before_mb, attack)
    assert not slow, f"longest turns in seconds of CPU time: {slow}"
    assert not closed, "these requests were not admitted, so they show nothing"
    assert quiet.failure is None
    assert not quiet.fenced
    assert not [line for line in target.broker.log if "a request failed" in line]
