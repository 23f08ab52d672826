"""The next controller answers requests to a controller that is deposed meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cluster.test_quorum import create
from support.brokers.clusters import CALM, ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

#: Time for the controller to write records that no other voter takes, before it resigns. Voters
#: that are restarted have the default, so that they elect another one soon.
FETCH_TIMEOUT = "controller.quorum.fetch.timeout.ms"
PATIENT = {FETCH_TIMEOUT: CALM[FETCH_TIMEOUT]}


def test_a_topic_asked_of_a_controller_that_is_deposed_is_made(tmp_path: Path) -> None:
    """The controller writes the topic into its log, no other voter fetches it, and another
    controller is elected. The client gets that one's response, not NOT_CONTROLLER."""
    with (
        running(ShoalCluster(tmp_path, configs=PATIENT)) as cluster,
        ThreadPoolExecutor(1) as beside,
    ):
        old = cluster.controller()
        others = [id for id in cluster.brokers if id != old]
        # A record fences brokers that die. These do not die until the topic is written.
        for id in others:
            cluster.freeze(id)
        before = _end(cluster, old)
        asked = beside.submit(create, cluster, old, "asked")
        eventually(lambda: _end(cluster, old) > before, what="the topic is not in the log")
        cluster.freeze(old)
        for id in others:
            cluster.nodes[id].kill9()
            del cluster.nodes[id].configs[FETCH_TIMEOUT]
        cluster.start(others)
        new = cluster.controller(but=old)
        assert new in others
        assert not asked.done()
        cluster.thaw(old)
        asked.result(60)
        cluster.on_all("asked", cluster.brokers)


def _end(cluster: ShoalCluster, id: int) -> int:
    """Return the log end of a node that leads the quorum, as it reports it."""
    found = cluster.describe_quorum(id)
    return next(v.log_end_offset for v in found.current_voters if v.replica_id == id)
