"""A QueueSchedule and a fair ShareGroup on Kubernetes: each tick is a record once, as a user with
its own rights, and a paused tenant waits while others are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e.resources import queue_cluster, queue_topic, queue_user, share_group
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.resources import Resources

pytestmark = pytest.mark.nightly

WINDOW = "shoal.deduplication.window.ms"
CLOCK = {
    "apiVersion": "shoal.dev/v1beta1",
    "kind": "QueueSchedule",
    "metadata": {"name": "clock"},
    "spec": {
        "cluster": "main",
        "user": "clock",
        "topic": "jobs",
        "schedule": "* * * * *",
        "headers": [{"name": "tenant", "value": "clock"}],
        "payload": {"inline": "tick"},
    },
}


def test_a_tick_waits_while_its_tenant_is_paused(resources: Resources) -> None:
    """It takes up to two minutes: cron knows no seconds."""
    may_write = {"producer": {"topics": ["jobs"]}}
    resources.apply(
        queue_cluster(),
        queue_topic(config={WINDOW: "3600000"}),
        share_group(
            fairness={"by": "Header", "header": "tenant"}, limits={"pausedTenants": ["clock"]}
        ),
        queue_user("clock", may_write),
        CLOCK,
    )
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
    resources.start_client()
    resources.produce("jobs", 3)
    resources.wait("queueschedule/clock", timeout_s=120)
    eventually(
        lambda: "lastScheduleTime" in resources.status("queueschedule/clock"),
        timeout_s=120,
        what="the first tick",
    )
    assert resources.condition("queueschedule/clock", "Deduplicated")["status"] == "True"
    resources.patch("queueschedule/clock", {"spec": {"suspend": True}})
    assert sorted(resources.share_consume("jobs", "workers")) == ["0", "1", "2"]
    resources.patch("sharegroup/workers", {"spec": {"limits": None}})
    resources.wait("sharegroup/workers")
    ticks = resources.share_consume("jobs", "workers")
    assert set(ticks) == {"tick"}
    assert len(ticks) <= 3
