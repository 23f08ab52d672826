"""Attackers one after the other and together, and a quiet client beside them.

The bar: while the quiet client waits for an answer, the broker spends at most `TURN_S` of CPU time
on all others; its memory returns; nobody is fenced. CPU time does not depend on what else runs on
the machine. `make hostile` runs everything, `make test` a part of each attack.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import permissions
import pytest
from attackers import CATALOGUE, LOGINS, Target, large_frames, send_and_wait
from conditions import eventually
from ports import free_ports
from quiet_clients import QuietClient
from servers import ShoalProcess
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The longest turn of the event loop, in seconds of CPU time.
TURN_S = 0.1
#: What an attack may leave behind, in megabytes.
MEMORY_MB = 20
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]
#: A part of each attack, or all of it.
PARTS = [pytest.param(0.1, id="short"), pytest.param(1.0, id="whole", marks=NIGHTLY)]
MODULE = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker with an authorizer, for attackers that may do everything or nothing, and with a
    listener for logins."""
    (port,) = free_ports(1)
    configs = {
        **permissions.CONFIGS,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LOGINS}:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "auto.create.topics.enable": "false",
        "delegation.token.secret.key": "secret of the test",
        f"listener.name.{LOGINS.lower()}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"listener.name.{LOGINS.lower()}.scram-sha-512.sasl.jaas.config": (
            f"{MODULE}.scram.ScramLoginModule required;"
        ),
    }
    broker = ShoalProcess(
        tmp_path_factory.mktemp("hostile") / "data",
        configs=configs,
        flags=(f"--listener={LOGINS}://127.0.0.1:{port}",),
    ).start()
    with WireClient(broker.bootstrap, source=permissions.ADMIN) as admin:
        admin.create_topic("quiet")
        permissions.grant(admin, permissions.everything(permissions.ADMIN))
    yield Target(broker, f"127.0.0.1:{port}", 1.0)
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


@pytest.fixture
def quiet(target: Target) -> Iterator[QuietClient]:
    client = QuietClient(target.broker)
    client.start()
    eventually(lambda: client.answers > 10)
    client.reset()
    yield client
    client.end()


def check(target: Target, quiet: QuietClient, attack: Callable[[Target], None]) -> None:
    """Attack twice. What the first time leaves in caches and in pages that are used again does not
    count."""
    attack(target)
    before_mb = target.broker.resident_mb()
    attack(target)
    assert quiet.longest_s <= TURN_S, f"a turn of {quiet.longest_s:.2f} s of CPU time"
    assert quiet.failure is None
    assert not quiet.fenced
    eventually(lambda: target.broker.resident_mb() - before_mb < MEMORY_MB, what="memory returns")
    assert not [line for line in target.broker.log if "a request failed" in line]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("attack", CATALOGUE, ids=lambda attack: attack.__name__)
def test_an_attacker(
    target: Target, quiet: QuietClient, attack: Callable[[Target], None], part: float
) -> None:
    check(target._replace(part=part), quiet, attack)


@pytest.mark.parametrize("part", PARTS)
def test_all_attackers_together(target: Target, quiet: QuietClient, part: float) -> None:
    def attack(target: Target) -> None:
        threads = [threading.Thread(target=one, args=(target,)) for one in CATALOGUE]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    check(target._replace(part=part / 2), quiet, attack)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("refused", [False, True], ids=["granted", "refused"])
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_largest_request_of_each_api(
    target: Target, quiet: QuietClient, which: str, refused: bool
) -> None:
    """Each array of each API full of names, made from the schemas."""
    version_of = min if which == "oldest" else max
    slow: dict[str, float] = {}
    for name, frame in large_frames(version_of, 1.0):
        quiet.reset()
        with target.connect(refused=refused) as client:
            send_and_wait(client, frame)
        if quiet.longest_s > TURN_S:
            slow[name] = round(quiet.longest_s, 2)
    assert not slow, f"longest turns in seconds of CPU time: {slow}"
    assert not quiet.fenced
    assert not [line for line in target.broker.log if "a request failed" in line]
