"""Controllers that come back without their data: brokers keep everything, end, and say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.clusters import ShoalCluster, running
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

QUICK = {"controller.quorum.fetch.timeout.ms": "1000", "broker.session.timeout.ms": "3000"}


def ended_with(broker: ShoalProcess) -> str:
    """Return the error with which a broker ends."""
    eventually(lambda: not broker.is_running, what="the broker ends")
    assert broker.stop() == 1
    (said,) = [line for line in broker.log if line.startswith("shoal server: ")]
    assert not [line for line in broker.log if "Traceback" in line or "AssertionError" in line]
    return said


@pytest.mark.parametrize(
    ("broker_is", "has_led_twice", "starts"),
    [
        ("running", False, 1),
        ("restarted", False, 1),
        ("running", True, 1),
        ("restarted", True, 1),
        ("restarted", False, 2),
    ],
    ids=[
        "running",
        "restarted",
        "running, earlier epoch",
        "restarted, earlier epoch",
        "restarted, later epoch",
    ],
)
def test_a_controller_returns_empty(
    tmp_path: Path, broker_is: str, has_led_twice: bool, starts: int
) -> None:
    """Found from outside: the broker ended with an AssertionError. A controller that leads in the
    epoch of the lost one shows the loss by its shorter log, one in an earlier epoch by that, and
    one in a later epoch by the topics that its log lacks."""
    roles = {1: "controller", 2: "broker"}
    with running(ShoalCluster(tmp_path, 2, configs=QUICK, roles=roles)) as cluster:
        controller, broker = cluster.nodes[1], cluster.nodes[2]
        with WireClient(broker.bootstrap) as client:
            client.create_topic("t")
            eventually(lambda: client.produce("t", b"kept").error_code == 0)
            if has_led_twice:
                controller.restart()
                # The broker has followed it in its new epoch.
                eventually(lambda: client.create_topic("later") is not None)
        if broker_is == "restarted":
            broker.stop()
        controller.kill9()
        controller.data_dir.rename(tmp_path / "aside")
        for _ in range(starts):
            controller.stop()
            controller.start()
        said = ended_with(broker) if broker_is == "running" else broker.refusal()
        assert "Controller 1 has lost metadata" in said
        assert "restore their data directories" in said
        assert not list(broker.data_dir.glob("*-stray"))
        # The remedy works.
        controller.stop()
        controller.data_dir.rename(tmp_path / "new")
        (tmp_path / "aside").rename(controller.data_dir)
        broker.log.clear()
        cluster.start()
        with WireClient(broker.bootstrap) as client:
            assert client.call(ApiKey.METADATA, 12, {"topics": None}).topics
            eventually(lambda: client.fetch("t", 0).high_watermark == 1)
