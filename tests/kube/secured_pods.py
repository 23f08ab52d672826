"""A QueueCluster with TLS as the operator renders it, run by real brokers on this host.

The operator writes its objects into an API server in memory. The brokers get the rendered
properties, variables and Secrets. Only host names, ports and the paths of mounts are replaced.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import re
import ssl
import urllib.request
from typing import TYPE_CHECKING, Any, Self
from urllib.error import HTTPError

from kube.api_server import ApiServer, CrashPoint, Manifest, resource
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.model import certificates, names, node_pools, pod_layout, security
from shoal_operator.model.certificates import KeyPair
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.security.identity_providers import AUDIENCE, ISSUER

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime.datetime.now(datetime.UTC)
#: The authority of the user's own certificate, which listener `own` shows.
OWN_CA = certificates.make_ca("their CA", now=NOW, validity_days=3)
OWN = certificates.issue(OWN_CA, "own", now=NOW, validity_days=2, ips=["127.0.0.1"], server=True)
SCRAM = {"type": "scram-sha-512"}
LISTENERS = [
    {
        "name": "mtls",
        "port": 9094,
        "type": "Internal",
        "tls": {},
        "authentication": {"type": "tls"},
    },
    {"name": "scram", "port": 9095, "type": "Internal", "tls": {}, "authentication": SCRAM},
    {
        "name": "own",
        "port": 9096,
        "type": "Internal",
        "tls": {"secretName": "theirs"},
        "authentication": SCRAM,
    },
]
SCRAPE_TOKEN = "a-token-of-prometheus"
#: The port of the brokers' metrics.
METRICS = 9404


def queue_cluster(jwks_url: str) -> Any:
    """Return a QueueCluster that takes tokens of the provider with these keys, too."""
    tokens = {
        "type": "oauthbearer",
        "jwksEndpointUrl": jwks_url,
        "validIssuer": ISSUER,
        "audience": AUDIENCE,
    }
    bearer = {"name": "bearer", "port": 9097, "type": "Internal", "tls": {}}
    return resource(
        "QueueCluster",
        "main",
        replicas=3,
        storage={"size": "1Gi"},
        config={"shoal.ssl.reload.interval.ms": "200"},
        listeners=[*LISTENERS, {**bearer, "authentication": tokens}],
        metrics={
            "port": METRICS,
            "tls": {},
            "token": {"secretKeyRef": {"name": "scrape", "key": "token"}},
        },
        superUsers=["User:root"],
        clusterCa={"overlap": "1s"},
        clientsCa={"overlap": "1s"},
    )


def tls_secret(pair: KeyPair) -> dict[str, Any]:
    """Return the user's Secret of listener `own`."""
    data = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "theirs", "namespace": "n"},
        "type": "kubernetes.io/tls",
        "data": {k: base64.b64encode(v).decode() for k, v in data.items()},
    }


def token_secret() -> dict[str, Any]:
    """Return the user's Secret with the token for the metrics."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "scrape", "namespace": "n"},
        "data": {"token": base64.b64encode(SCRAPE_TOKEN.encode()).decode()},
    }


class LocalBrokers(Brokers):
    """The operator's connections, to the brokers of this host."""

    async def set_addresses(self, *_: object) -> None:
        """Keep the addresses."""


class SecuredPods:
    """The cluster's objects, and the brokers that run from them."""

    def __init__(
        self, folder: Path, cluster: Any, *secrets: Manifest, kube: ApiServer | None = None
    ) -> None:
        """`cluster` is the QueueCluster, and `secrets` are those of its user. `kube` has more
        controllers."""
        self.folder = folder
        self.kube = kube or ApiServer(CrashPoint())
        for one in (cluster, *secrets):
            self.kube.add(one)
        known = [one["port"] for one in cluster["spec"]["listeners"]]
        known += [security.REPLICATION_PORT, security.CONTROLLER_PORT, METRICS]
        #: The ids of the nodes, and of those that serve clients.
        self.ids, self.of_clients = pod_layout.list_nodes(cluster), pod_layout.list_brokers(cluster)
        free = iter(free_ports(len(self.ids) * len(known)))
        self.ports = {(node, port): next(free) for node in self.ids for port in known}
        self.brokers: list[ShoalProcess] = []

    @property
    def resource(self) -> Any:
        """The QueueCluster."""
        return self.kube.find("QueueCluster", "main")

    async def reconcile(self, passes: int = 1) -> None:
        """Run a new operator. From its second pass on, it knows the brokers' certificates."""
        brokers = LocalBrokers(
            self.bootstrap(security.REPLICATION_PORT),
            self.metrics_urls(),
            controllers=self.controllers(),
        )
        store = self.kube.store()
        clusters = QueueClusterReconciler(
            self.kube, store, brokers, "n", "main", "i:1", on_reachable=lambda: None
        )
        try:
            for _ in range(passes):
                await clusters.reconcile(["main"])
        finally:
            await brokers.close()

    def metrics_urls(self) -> dict[int, str]:
        """Return the base URLs of the brokers' metrics."""
        scheme = "https" if "tls" in self.resource["spec"]["metrics"] else "http"
        return {b: f"{scheme}://127.0.0.1:{self.ports[b, METRICS]}/" for b in self.ids}

    def controllers(self) -> dict[int, str]:
        """Return the addresses of dedicated controllers by id."""
        dedicated = [id for id in self.ids if id not in self.of_clients]
        return {id: f"127.0.0.1:{self.ports[id, security.CONTROLLER_PORT]}" for id in dedicated}

    def start(self) -> Self:
        """Let the operator create its objects; start brokers from them, and their pods."""
        self.kube.controllers_paused = True
        asyncio.run(self.reconcile())
        self.mount()
        self.brokers = [self._broker(number) for number in self.ids]
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait()
        self.kube.resume_controllers()
        return self

    def stop(self) -> None:
        for broker in self.brokers:
            broker.kill9()

    def metrics(
        self,
        number: int,
        *,
        scheme: str = "https",
        path: str = "metrics",
        token: str = "",
        pair: KeyPair | None = None,
    ) -> tuple[int, str]:
        """Read a page of a broker with a token, or a certificate; return status and body."""
        url = f"{scheme}://127.0.0.1:{self.ports[number, METRICS]}/{path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        trusted = self.secret(security.format_ca_cert_secret("main", security.CLUSTER))["ca.crt"]
        context = ssl.create_default_context(cadata=trusted.decode())
        if pair is not None:
            file = self.folder / "reader.pem"
            file.write_bytes(pair.key + pair.certificate)
            context.load_cert_chain(file)
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(
                request, timeout=60, context=context if scheme == "https" else None
            ) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def mount(self) -> None:
        """Write the files of all Secrets that the pods mount, as the kubelet does."""
        for volume in self._pod()["volumes"]:
            if "secret" not in volume:
                continue
            folder = self.folder / volume["name"]
            folder.mkdir(exist_ok=True)
            for name, content in self.secret(volume["secret"]["secretName"]).items():
                (folder / f"{name}.new").write_bytes(content)
                (folder / f"{name}.new").rename(folder / name)

    def _pod(self, number: int = 0) -> Manifest:
        """Return the spec of a pod."""
        name, _, _ = node_pools.format_pod_name(self.resource, number).rpartition("-")
        template: Manifest = self.kube.find("StatefulSet", name)["spec"]["template"]
        return dict(template["spec"])

    def secret(self, name: str) -> dict[str, bytes]:
        """Return the data of a Secret."""
        data = self.kube.find("Secret", name)["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    def authority(self, kind: str) -> KeyPair:
        """Return an authority of the cluster."""
        data = self.secret(security.format_ca_secret("main", kind))
        return KeyPair(data["ca.crt"], data["ca.key"])

    def operator(self) -> dict[str, str]:
        """Return the operator's properties as a client."""
        return security.parse_operator_client(
            self.kube.find("Secret", security.format_operator_secret("main"))
        )

    def connection(self) -> Brokers:
        """Return a connection of the operator."""
        servers = self.bootstrap(security.REPLICATION_PORT)
        return LocalBrokers(servers, self.metrics_urls(), self.operator())

    def bootstrap(self, port: int) -> str:
        """Return the addresses of a listener; `port` is its port in the spec."""
        return ",".join(f"127.0.0.1:{self.ports[number, port]}" for number in self.of_clients)

    def environment(self, number: int) -> dict[str, str]:
        """Return the variables of a broker's container, as Kubernetes sets them."""
        fields = {
            "SHOAL_NODE_ID": str(number),
            "POD_NAME": node_pools.format_pod_name(self.resource, number),
        }
        return {
            e["name"]: self._local(number, e["value"])
            if "value" in e
            else fields.get(e["name"], "")
            for e in self._pod(number)["containers"][0]["env"]
        }

    def _broker(self, number: int) -> ShoalProcess:
        text = self.kube.find("ConfigMap", "main-broker")["data"][f"broker-{number}.properties"]
        file = self.folder / f"broker-{number}.properties"
        file.write_text(self._local(number, text))
        (listeners,) = re.findall(r"(?m)^listeners=(.*)$", file.read_text())
        first, *others = listeners.split(",")
        authorities = self.folder / "system-authorities.pem"
        authorities.write_bytes(OWN_CA.certificate)
        broker = ShoalProcess(
            self.folder,
            configs={"log.dirs": str(self.folder / f"data-{number}")},
            environment={**self.environment(number), "SSL_CERT_FILE": str(authorities)},
            metrics=f"127.0.0.1:{self.ports[number, METRICS]}",
            flags=[f"--config={file}", *(f"--listener={one}" for one in others)],
            listener=first.partition(":")[0],
        )
        broker.bootstrap = first.partition("//")[2]
        return broker

    def _local(self, number: int, text: str) -> str:
        """Replace the names, ports and paths of a pod."""

        def address(found: re.Match[str]) -> str:
            return f"127.0.0.1:{self.ports[int(found['pod']), int(found['port'])]}"

        text = text.replace("${env:POD_NAME}", node_pools.format_pod_name(self.resource, number))
        pod = r"main-(?:broker|pool-[a-z0-9]+)-(?P<pod>\d+)"
        text = re.sub(rf"{pod}\.main-brokers\.n\.svc:(?P<port>\d+)", address, text)
        text = re.sub(
            r"(?<=://):(\d+)|localhost:(\d+)",
            lambda found: f"127.0.0.1:{self.ports[number, int(found[1] or found[2])]}",
            text,
        )
        secrets = {volume["name"] for volume in self._pod(number)["volumes"] if "secret" in volume}
        for mount in self._pod(number)["containers"][0]["volumeMounts"]:
            if mount["name"] in secrets:
                text = text.replace(mount["mountPath"], str(self.folder / mount["name"]))
        return text.replace(names.DATA_DIR, str(self.folder / f"data-{number}"))
