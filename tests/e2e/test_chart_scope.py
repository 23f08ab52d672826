"""The chart refuses a second operator of the same namespaces; helm asks an API server for Leases.

The server has only what helm asks for, so that the test needs no Kubernetes.
"""

from __future__ import annotations

import datetime
import json
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster.backend import tool
from e2e.cluster.commands import run
from e2e.cluster.layout import ClusterError
from e2e.release import CHART, KUBE
from shoal_operator.kube.scope import HELD_SECONDS, WATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUP = "coordination.k8s.io/v1"
LEASES = {"name": "leases", "namespaced": True, "kind": "Lease", "verbs": ["get", "list"]}
DEPLOYMENTS = {**LEASES, "name": "deployments", "kind": "Deployment"}
LABELS = {"app.kubernetes.io/name": "shoal-operator"}


@contextmanager
def api_server(lease: dict[str, Any], *, installed: bool) -> Iterator[str]:
    """Serve this Lease, and the Deployment of its operator if it is `installed`; yield the URL."""
    deployment: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment"}
    deployment["metadata"] = {"name": "shoal-operator", "labels": LABELS}
    namespace = lease["metadata"]["namespace"]
    answers: dict[str, Any] = {
        "/apis/apps/v1": {"groupVersion": "apps/v1", "resources": [DEPLOYMENTS]},
        f"/apis/apps/v1/namespaces/{namespace}/deployments": {
            "apiVersion": "apps/v1",
            "kind": "DeploymentList",
            "metadata": {},
            "items": [deployment] if installed else [],
        },
        f"/apis/{GROUP}": {"groupVersion": GROUP, "resources": [LEASES]},
        f"/apis/{GROUP}/leases": {
            "apiVersion": GROUP,
            "kind": "LeaseList",
            "metadata": {},
            "items": [lease],
        },
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "code": 404}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def lease(
    namespace: str = "one", watches: str = "*", *, holder: str = "pod", age_s: float = 0.0
) -> dict[str, Any]:
    renewed = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
    meta: dict[str, Any] = {"name": "shoal-operator", "namespace": namespace}
    meta["labels"] = LABELS
    meta["annotations"] = {WATCHES: watches}
    spec = {"holderIdentity": holder, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return {"apiVersion": GROUP, "kind": "Lease", "metadata": meta, "spec": spec}


NODE: dict[str, Any] = {"metadata": {"name": "node", "namespace": "kube-node-lease"}, "spec": {}}


@pytest.mark.parametrize(
    ("make_lease", "watched", "refused"),
    [
        (partial(lease), [], True),
        (partial(lease), ["a"], True),
        (partial(lease, watches="a,b"), [], True),
        (partial(lease, watches="a,b"), ["b", "c"], True),
        (partial(lease, watches="a,b"), ["c"], False),
        # An upgrade of the same release, one that was uninstalled, and one that crashed.
        (partial(lease, "two"), [], False),
        (partial(lease, holder=""), [], False),
        (partial(lease, age_s=HELD_SECONDS + 1), [], False),
        (lambda: NODE, [], False),
    ],
)
def test_a_second_release_is_refused(
    make_lease: Callable[[], dict[str, Any]], watched: list[str], refused: bool
) -> None:
    """Unless the two watch disjoint namespaces."""
    with api_server(make_lease(), installed=True) as url:
        if not refused:
            assert "kind: Deployment" in render(url, watched)
            return
        with pytest.raises(ClusterError, match="operator in namespace one acts on the same"):
            render(url, watched)


def test_a_release_that_was_uninstalled_just_now_is_no_obstacle() -> None:
    """Its Lease is held for a few seconds more, for which the new operator waits."""
    with api_server(lease(), installed=False) as url:
        assert "kind: Deployment" in render(url, [])


def render(url: str, watched: list[str]) -> str:
    """Return the objects of a release in namespace `two`, as an API server lets helm install it."""
    where = ("--dry-run=server", f"--kube-apiserver={url}", "--kube-token=x", "--namespace=two")
    values = f"--set-json=watchNamespaces={json.dumps(watched)}"
    return str(run(tool("helm"), "template", "shoal", CHART, *where, KUBE, values).stdout)
