"""`spec.template` and the Services of listeners: what is rendered, what is refused, what restarts
brokers."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from kube import rendered
from kube.api_server import ApiServer, CrashPoint, resource
from kube.test_spark_consumers import CONTEXT
from shoal_operator.brokers import Brokers
from shoal_operator.cluster.objects import ClusterObjects
from shoal_operator.cluster.observation import Observer
from shoal_operator.workloads import Workloads

Manifest = dict[str, Any]


class Objects:
    """The objects of one QueueCluster in an API server in memory."""

    def __init__(self) -> None:
        self.kube = ApiServer(CrashPoint())

    def apply(self, **spec: Any) -> list[str]:
        """Apply a spec as a new operator does; return the Services without an address."""
        least = rendered.clusters()["least"]["spec"]
        self.kube.add(resource("QueueCluster", "main", **{**least, **spec}))
        store = self.kube.store()
        brokers = Brokers("127.0.0.1:1")
        observer = Observer(store, brokers, "n", "main", on_reachable=lambda: None)
        objects = ClusterObjects(self.kube, store, observer, "i:1", "Always")
        return asyncio.run(objects.apply(self.kube.find("QueueCluster", "main")))

    def pod(self) -> Manifest:
        """Return the spec of the pods' template."""
        template = self.kube.find("StatefulSet", "main-broker")["spec"]["template"]
        return template["spec"]


def test_a_field_that_is_removed_from_the_spec_is_removed_from_the_objects() -> None:
    objects = Objects()
    template = {
        "pod": {"nodeSelector": {"disk": "fast"}},
        "service": {"annotations": {"a": "b"}},
    }
    objects.apply(template=template)
    assert objects.pod()["nodeSelector"] == {"disk": "fast"}
    assert objects.kube.find("Service", "main-bootstrap")["metadata"]["annotations"]["a"] == "b"
    objects.apply()
    assert "nodeSelector" not in objects.pod()
    notes = objects.kube.find("Service", "main-bootstrap")["metadata"]["annotations"]
    assert "a" not in notes


def test_objects_that_have_not_changed_are_not_applied_again() -> None:
    objects = Objects()
    objects.apply()
    before = objects.kube.crash_point.changes
    objects.apply()
    assert objects.kube.crash_point.changes == before


def test_a_field_that_is_removed_from_a_consumers_template_is_removed_from_its_pods() -> None:
    kube = ApiServer(CrashPoint())
    pod: Manifest = {"containers": [{"name": "c"}], "nodeSelector": {"disk": "fast"}}

    def apply() -> Manifest:
        spec = {"shareGroup": "g", "deployment": {"template": {"spec": copy.deepcopy(pod)}}}
        kube.add(resource("ShareConsumer", "eaters", **spec))
        consumer = kube.find("ShareConsumer", "eaters")
        asyncio.run(Workloads(kube, kube.store()).apply(consumer, CONTEXT, 1))
        return kube.find("Deployment", "eaters")["spec"]["template"]["spec"]

    assert apply()["nodeSelector"] == {"disk": "fast"}
    del pod["nodeSelector"]
    assert "nodeSelector" not in apply()
