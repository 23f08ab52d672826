"""Attackers one after the other and together, and a quiet client beside them.

The bar: while the quiet client waits for an answer, the broker spends at most `TURN_S` of CPU time
on all others; its memory returns; nobody is fenced. CPU time depends little on what else runs on
the machine. `make hostile` runs everything, `make test` a part of each attack.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import permissions
import pytest
from attackers import (
    CATALOGUE,
    LEFT_OUT,
    LOGINS,
    Target,
    make_largest_frames,
    send_and_wait,
)
from conditions import eventually
from ports import free_ports
from quiet_clients import QuietClient
from servers import ShoalProcess
from shoal.protocol.api import ApiKey
from shoal.server.handlers import HANDLERS
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The longest turn of the event loop, in seconds of CPU time.
TURN_S = 0.1
#: How often a single request has to take longer: on a busy machine the same work takes up to twice
#: as much CPU time.
ATTEMPTS = 3
#: What an attack may leave behind, in megabytes.
MEMORY_MB = 20
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]
#: A part of each attack, or all of it.
PARTS = [pytest.param(0.1, id="short"), pytest.param(1.0, id="whole", marks=NIGHTLY)]
MODULE = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker with an authorizer, for attackers that may do everything or nothing, and with
    listeners for logins and for controllers."""
    port, controllers = free_ports(2)
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
        flags=(
            f"--listener={LOGINS}://127.0.0.1:{port}",
            "--node-id=1",
            f"--quorum=1@127.0.0.1:{controllers}",
            "--cluster-id=hostile",
        ),
    ).start()
    with WireClient(broker.bootstrap, source=permissions.ADMIN) as admin:
        admin.create_topic("quiet")
        permissions.grant(admin, permissions.everything(permissions.ADMIN))
    yield Target(broker, f"127.0.0.1:{port}", f"127.0.0.1:{controllers}", 1.0)
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


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


def check_memory(target: Target, before_mb: float) -> None:
    """Check that the broker's memory returns to what it was."""

    def returns() -> bool:
        more_mb = target.broker.resident_mb() - before_mb
        assert more_mb < MEMORY_MB, f"{more_mb:.0f} MB more than before"
        return True

    eventually(returns)


def check(target: Target, quiet: QuietClient, attack: Callable[[Target], None]) -> None:
    """Attack twice. What the first time leaves in caches and in pages that are used again does not
    count."""
    attack(target)
    before_mb = target.broker.resident_mb()
    attack(target)
    assert quiet.longest_s <= TURN_S, f"a turn of {quiet.longest_s:.2f} s of CPU time"
    assert quiet.failure is None
    assert not quiet.fenced
    check_memory(target, before_mb)
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
@pytest.mark.parametrize("key", [key for key in HANDLERS if key not in LEFT_OUT], ids=name_of)
def test_the_largest_requests_of_an_api(target: Target, quiet: QuietClient, key: int) -> None:
    """Each array full of short or long names, made from the schemas, in the first and the last
    version. Those of a client without permissions cost no more."""
    api = ApiKey(key)
    frames = list(make_largest_frames(api))
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
                    if quiet.longest_s <= TURN_S:
                        break
                else:
                    slow[f"{name}{' refused' * refused}"] = round(quiet.longest_s, 2)

    attack()
    assert not slow, f"longest turns in seconds of CPU time: {slow}"
    before_mb = target.broker.resident_mb()
    attack()
    check_memory(target, before_mb)
    assert not slow, f"longest turns in seconds of CPU time: {slow}"
    assert not closed, "these requests were not admitted, so they show nothing"
    assert quiet.failure is None
    assert not quiet.fenced
    assert not [line for line in target.broker.log if "a request failed" in line]
