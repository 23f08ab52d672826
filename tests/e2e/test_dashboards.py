"""Every panel of the dashboard for scaling shows something: Prometheus scrapes the operator.

`tests/compat/pages/test_dashboards.py` has the dashboards for brokers.
"""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dashboard_pictures
import pytest
import yaml
from e2e.release import NAMESPACE
from e2e.resources import Resources, queue_topic, share_consumer, share_group
from support.pages.prometheus_server import Prometheus, lines
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster

pytestmark = pytest.mark.nightly
DASHBOARD = "shoal-scaling"
SCALING = {"maxReplicas": 2, "targetLagPerReplica": 50, "recordsPerReplica": 10}
#: Panels that stay empty while nothing is wrong, and what would fill them.
QUIET = {"Failed reconciliations": "an error of the API server or of the operator"}
PANELS_S = 300
#: The folder for the picture of the docs; it is not drawn without one.
PICTURES = os.environ.get("SHOAL_PICTURES", "")
#: Seconds of a wave of records.
WAVE_S = 150


def credentials(cluster: Cluster, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the API server's address and the TLS settings of a scrape, from the kubeconfig."""
    made = yaml.safe_load(cluster.kubeconfig.read_text())
    (server,), (user,) = made["clusters"], made["users"]
    texts = {
        "ca_file": server["cluster"]["certificate-authority-data"],
        "cert_file": user["user"]["client-certificate-data"],
        "key_file": user["user"]["client-key-data"],
    }
    for name, text in texts.items():
        (folder / name).write_bytes(base64.b64decode(text))
    address = server["cluster"]["server"].removeprefix("https://")
    return address, {name: str(folder / name) for name in texts}


def targets(resources: Resources, address: str) -> Iterator[dict[str, Any]]:
    """Yield a target for each pod with metrics, with the labels of the chart's PodMonitor. The
    API server forwards the scrapes, so the machine needs no route to the pods."""
    for pod in resources.find_all("pods"):
        meta = pod["metadata"]
        ports = [p for c in pod["spec"]["containers"] for p in c.get("ports", ())]
        for port in (p["containerPort"] for p in ports if p.get("name") == "metrics"):
            where = f"/api/v1/namespaces/{resources.namespace}/pods/{meta['name']}:{port}"
            labels = {
                "namespace": resources.namespace,
                "pod": meta["name"],
                "__metrics_path__": f"{where}/proxy/metrics",
            }
            if cluster := meta["labels"].get("shoal.dev/cluster"):
                labels["shoal_dev_cluster"] = cluster
            yield {"targets": [address], "labels": labels}


def draw_scaling(queue: Resources, server: Prometheus) -> None:
    """Draw the dashboard after some minutes, in which the backlog grows and is worked off."""
    began_s = time.time()
    for _ in range(3):
        queue.produce("jobs", 400)
        ended_s = time.time() + WAVE_S
        eventually(lambda at=ended_s: time.time() > at, timeout_s=2 * WAVE_S)
    dashboard_pictures.draw(server, DASHBOARD, began_s, Path(PICTURES))


def test_every_panel_of_the_operator_has_a_line(queue: Resources, tmp_path: Path) -> None:
    queue.apply(queue_topic(), share_group(), share_consumer(scaling=SCALING))
    queue.wait("queuetopic/jobs", "sharegroup/workers", "shareconsumer/eaters")
    address, tls = credentials(queue.cluster, tmp_path)
    found = [
        *targets(Resources(queue.cluster, NAMESPACE), address),
        *targets(queue, address),
    ]
    assert len(found) >= 2
    scrape = {
        "job_name": "pods",
        "scheme": "https",
        "tls_config": tls,
        "honor_labels": True,
        "static_configs": found,
    }
    server = Prometheus(tmp_path / "prometheus", [scrape]).start()
    try:
        left = {one for one in lines() if one.dashboard == DASHBOARD}
        assert len(left) > 10

        def shown() -> bool:
            queue.produce("jobs", 50)
            left.difference_update([one for one in left if server.has(one.query)])
            empty = {one.panel for one in left}
            assert empty <= QUIET.keys(), sorted(f"{one.panel}: {one.query}" for one in left)
            return True

        eventually(shown, timeout_s=PANELS_S)
        if PICTURES:
            draw_scaling(queue, server)
        namespaces = server.label_values("namespace", "shoal_share_consumer_wanted")
        assert queue.namespace in namespaces
        clusters = server.label_values(
            "shoal_dev_cluster", "kafka_server_ReplicaManager_PartitionCount"
        )
        assert "main" in clusters
    finally:
        server.stop()
