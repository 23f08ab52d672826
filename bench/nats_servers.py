"""Three servers of NATS JetStream, which compares with the clusters in `clusters.py`.

`nats-server` is built from its pinned Go module, as other programs of tests are, and has its stock
settings. With `Security`, clients log in over TLS and may only use the subjects of loads, and the
servers' routes need certificates.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusters import Cluster, Node
from load_checks import LoadFailed
from security import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from security import Security

TESTS = Path(__file__).resolve().parents[1] / "tests"


def find_server() -> Path:
    """Return the path of `nats-server`, built now if it is not cached. Raises `LoadFailed`."""
    sys.path.append(str(TESTS))
    from e2e.cluster.layout import ClusterError
    from e2e.cluster.programs import program

    try:
        return program("nats-server")
    except (ClusterError, OSError) as error:
        raise LoadFailed(f"nats-server cannot be built from its Go module: {error}") from None


class NatsNode(Node):
    name = "nats"

    def __init__(
        self, directory: Path, id: int, ports: Mapping[int, int], security: Security | None = None
    ) -> None:
        super().__init__(directory, id, ports, security)
        self._routes = {n: port for n, port in ports.items() if 10 < n < 20}
        self._http = ports[id + 30]

    @property
    def _config(self) -> Path:
        return self.directory / "server.conf"

    def prepare(self) -> None:
        super().prepare()
        routes = ", ".join(f"nats-route://127.0.0.1:{port}" for port in self._routes.values())
        secured = ""
        if self.security:
            files = f"cert_file: '{self.security.server}', key_file: '{self.security.server}'"
            secured = f"tls {{ {files}, ca_file: '{self.security.ca}', verify: true }}"
        self._config.write_text(f"""
            server_name: n{self.id}
            listen: '{self.bootstrap}'
            http: '127.0.0.1:{self._http}'
            jetstream {{ store_dir: '{self.directory / "data"}' }}
            cluster {{
              name: bench
              listen: '127.0.0.1:{self._routes[self.id + 10]}'
              routes: [{routes}]
              {secured}
            }}
            {secured.replace("verify: true", "verify: false")}
            {_permissions() if self.security else ""}
        """)

    def command(self) -> list[str]:
        return [str(find_server()), "-c", str(self._config)]

    def _answers(self) -> bool:
        return self.status("healthz").get("status") == "ok"

    def status(self, page: str) -> dict[str, Any]:
        """Return a page of the server's monitoring; empty if the server is not ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/{page}", timeout=5) as got:
                return dict(json.loads(got.read()))
        except (OSError, ValueError):
            return {}


def _permissions() -> str:
    """Return the one user, with the subjects of loads and what JetStream's clients need."""
    allowed = "publish: ['bench.>', '$JS.API.>', '$JS.ACK.>'], subscribe: ['_INBOX.>']"
    user = f"user: {USER}, password: '{PASSWORD}', permissions: {{ {allowed} }}"
    return f"authorization {{ users: [ {{ {user} }} ] }}"


class NatsCluster(Cluster):
    """Three servers, which replicate each stream of a load."""

    def __init__(self, folder: Path, security: Security | None = None) -> None:
        super().__init__(NatsNode, folder, security)

    def brokers(self) -> list[int]:
        """Return the servers that know a leader of all three."""
        return [id for id, node in self.nodes.items() if _has_joined(node)]


def _has_joined(node: Node) -> bool:
    assert isinstance(node, NatsNode)
    found = node.status("jsz").get("meta_cluster", {})
    return bool(found.get("leader")) and found.get("cluster_size") == 3
